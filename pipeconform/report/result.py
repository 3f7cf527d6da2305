"""The result of a run: the file from which every report is made.

A cell is one requirement under one schedule in one environment variant. The file is JSON, carries its
format's version and is validated when read; `schema` returns its JSON Schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from pipeconform.case.any_case import AnyCase, case_of, schema_with_cases
from pipeconform.errors import BadResultError
from pipeconform.observe.localisation import Localisation
from pipeconform.ranks.waiting import Place
from pipeconform.reading import Line, decoded_json, file_bytes
from pipeconform.report.coverage import Coverage
from pipeconform.report.location import RESULT_NAME
from pipeconform.spec.wrappers import Kind
from pipeconform.writing import whole_file

__all__ = [
    "RESULT_FORMAT",
    "Cell",
    "Control",
    "Environment",
    "Expectations",
    "Implementation",
    "Pairs",
    "Result",
    "Run",
    "Shown",
    "Status",
    "Together",
    "Totals",
    "Violation",
    "as_json",
    "decode_cell",
    "line_of",
    "read_result",
    "schema",
    "write_result",
]

RESULT_FORMAT = 10
"""Format 2 added a violation's timeline, flaky cells, digests of the rules and the use of expectations; 3 where a wrong
value begins; 4 module wrappers and their cases; 5 cases that are wrong in changing ways; 6 how much was compared, cells
that compared nothing, what is returned without being claimed, ids of runs and the errors that an implementation
promises; 7 controls, and cells that another requirement blocks; 8 what the largest case shows; 9 what
was executed of the implementation; 10 which two claimed things were in one case. A file of an earlier format is read as
one without these."""

_READABLE = (1, 2, 3, 4, 5, 6, 7, 8, 9, RESULT_FORMAT)

Status = Literal[
    "passed",
    "failed",
    "hung",
    "crashed",
    "error",
    "flaky",
    "blocked",
    "nothing_compared",
    "not_claimed",
    "skipped",
]
SEVERITY: tuple[Status, ...] = (
    "crashed",
    "hung",
    "failed",
    "error",
    "flaky",
    "blocked",
    "nothing_compared",
    "passed",
    "not_claimed",
    "skipped",
)
"""Worst first. A cell has the status of its worst confirmed violation that is not blocked; it is blocked if all are,
and flaky if none is confirmed."""


class _Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Strict and immutable."""


class Control(_Data, frozen=True, kw_only=True):
    """What became of a violation's case without what its requirement adds, or before an earlier requirement."""

    words: str = ""
    """What was changed, such as ``without the delay``; empty if the violation's own case was judged by earlier
    requirements."""
    digest: Line
    """The digest of the case that was executed."""
    requirement: Line = ""
    """The requirement whose business the violation is, because it is violated in this case; empty if the case shows
    nothing that explains the violation."""
    status: Status = "passed"
    """How that requirement is violated; ``passed`` if nothing was found."""
    signature: Line = ""
    message: str = ""
    where: Line = ""
    verdicts: str = ""
    case: AnyCase | None = None
    """The case that was executed; None if it showed nothing, or is the violation's own."""


class Shown(_Data, frozen=True, kw_only=True):
    """What another case shows of a violation."""

    case: AnyCase
    line: str
    """The first line of the message, and the place."""


class Violation(_Data, frozen=True, kw_only=True):
    """One way in which a cell's requirement is violated, with the smallest case that shows it."""

    id: Line
    """Short and stable: ``TRN-4:GPipe:default:1f3a``; `pipeconform replay ID` finds it."""
    status: Status
    signature: Line
    message: str
    where: Line
    case: AnyCase
    digest: Line
    minimal: bool
    """Whether shrinking ended by itself, not by its budget."""
    confirmed: bool
    """Whether the case was wrong every time it was executed again, if not always in the same way; otherwise it is
    flaky."""
    shrink_executions: int
    """How many cases were tried to make it small; one that another violation had executed was not executed anew."""
    occurrences: int
    """How many cases of this cell show it. After the first, bounds of enormous differences are not computed."""
    verdicts: str
    """One line per rank: returned, raised, died or stuck."""
    replay: Line
    timeline: tuple[tuple[str, ...], ...] | None = None
    """What ran in the step of `where`: each pipeline rank's computations in order, such as ``1B2``; None where this
    was not observed."""
    first_wrong: tuple[int, int] | None = None
    """The first wrong computation of `timeline`: pipeline rank, and index in its list (the list's length if a
    computation is missing at the end)."""
    reruns: int = 0
    """How often the case was executed again, because it did not show the violation every time."""
    shown_again: int = 0
    """How many of the reruns showed it."""
    shown_otherwise: int = 0
    """How many of the reruns showed another violation instead."""
    expected: Line = ""
    """The entry of the expectations file that covers it, as ``file:line``."""
    places: tuple[Place, ...] = ()
    """Where every rank of the world was, if any was stuck: what it waited for, and its stack."""
    localisation: Localisation | None = None
    """The first wrong tensor in the data flow; None if no value is wrong, or the violation is expected."""
    control: Control | None = None
    """The execution that shows whose business the violation is; None if it was not made."""
    found_by: Line = ""
    """The id of the violation of another requirement whose control showed this one; empty if a case of its own did."""
    large: Shown | None = None
    """The largest drawn case that shows it, where that is another one and what it shows is the same each time: a second
    mistake of the same kind may show only there."""

    @property
    def line(self) -> str:
        """The first line of the message, and the place."""
        return line_of(self.message, self.where)

    @property
    def blocked_by(self) -> str:
        """The requirement that is violated without what this violation's requirement adds; empty if there is none."""
        return self.control.requirement if self.control is not None else ""


class Cell(_Data, frozen=True, kw_only=True):
    """The verdict on one requirement under one schedule in one variant."""

    requirement: Line
    schedule: Line
    variant: Line = "default"
    status: Status
    reason: str = ""
    judgements: int = 0
    """How often a case was judged."""
    compared: int = 0
    """How many values, orders, counts and answers these judgements compared; cases without the requirement's subject
    do not count. 0 in files of formats before 6."""
    unclaimed: tuple[str, ...] = ()
    """Names of features that the implementation returned in these cases without claiming them."""
    without: tuple[str, ...] = ()
    """Subjects of the requirement without any case, because they are not claimed."""
    executions: int = 0
    """How many executions this cell caused; judging a cached execution causes none."""
    distinct_cases: int = 0
    counts: dict[str, int] = {}
    """Judgements per ``p=2,v=1``."""
    microbatches: dict[str, int] = {}
    """Judgements by the number of microbatches, compared with p: one, fewer, equal, more. A program with different
    numbers counts in each."""
    seconds: float = 0.0
    worst_ratio: float | None = None
    """The largest ratio of a difference to its bound among accepted values, up to 1; None where none needed it."""
    violations: tuple[Violation, ...] = ()
    stale: tuple[str, ...] = ()
    """Stored cases of expectations that no longer show their violation."""
    case: AnyCase | None = None
    """The case at which it could not be judged; None if it was judged, or is not about a single case."""

    @property
    def id(self) -> str:
        """``TRN-4:GPipe:default``; `pipeconform replay ID` finds the `case`."""
        return f"{self.requirement}:{self.schedule}:{self.variant}"

    def replay(self, implementation: Implementation) -> str:
        """The command that executes the `case` again; empty without one."""
        return "" if self.case is None else f"pipeconform replay {self.id} --impl {implementation.reference}"

    @property
    def is_judged(self) -> bool:
        """Whether it is a verdict on the implementation: something was compared, or was wrong."""
        return bool(self.violations) or (self.judgements > 0 and self.status != "nothing_compared")

    @property
    def is_broken(self) -> bool:
        """Whether it could not be judged, because of the adapter or the machine: an error without a violation."""
        return self.status == "error" and not self.violations

    @property
    def is_expected(self) -> bool:
        """Whether it has violations that are covered by expectations, and no others, but for blocked ones."""
        own = [one for one in self.violations if one.expected or not one.blocked_by]
        return bool(own) and all(one.expected for one in own)


class Environment(_Data, frozen=True, kw_only=True):
    """Where the run took place."""

    python: Line
    torch: Line
    os: Line
    machine: Line
    cpus: int
    device: Line
    backend: Line
    device_names: tuple[Line, ...] = ()
    variables: dict[str, dict[str, str | None]] = {}
    """Per variant the effective values, as the ranks reported them."""


class Implementation(_Data, frozen=True, kw_only=True):
    """What was judged."""

    reference: Line
    name: Line
    version: Line
    kind: Kind = "pipeline"
    capabilities: Any = None
    built_on: Line = ""
    """The name of the implementation that it is built on, whose known findings are its own, too; empty if none."""
    source: Line = ""
    """The name of the adapter's source file."""
    source_digest: Line = ""
    """The SHA-256 of that file's contents, in hexadecimal digits."""
    errors: Any = None
    """How it promises to react to mistakes, as in `pipeconform.adapter.ErrorContract`; None for a wrapper."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which findings in it are known: its own, then that of what it is built on."""
        return tuple(filter(None, (self.name, self.built_on)))


class Expectations(_Data, frozen=True, kw_only=True):
    """The expectations file that a run was judged against."""

    file: Line
    digest: Line
    """The SHA-256 of the file's contents."""
    entries: int
    problems: tuple[str, ...] = ()
    """Required changes to the file, each with its line."""


class Run(_Data, frozen=True, kw_only=True):
    """What was asked for."""

    profile: Line
    seed: int
    corpus: int
    search: int
    schedules: tuple[Line, ...]
    max_ranks: int
    selection: Line = ""
    unrestricted: bool = False
    """Whether every claimed schedule was to be judged, under every requirement of `selection`."""
    complete: bool = True
    """False if the run was interrupted, so that cells are missing."""
    seconds: float = 0.0
    ids: tuple[str, ...] = ()
    """A random number that identifies the run in other files; one for each run that was merged."""


class Pairs(_Data, frozen=True, kw_only=True):
    """How many combinations of two properties the executed cases had, out of those that claims and limits allow."""

    of: tuple[str, str]
    """Such as ``schedule`` and ``boundary``."""
    reached: int
    reachable: int
    missing: tuple[tuple[str, str], ...] = ()
    """Some combinations that were not reached."""


class Together(_Data, frozen=True, kw_only=True):
    """Two claimed things, and the schedules under which an executed case had both."""

    of: tuple[str, str]
    """Such as ``accumulation`` and ``optimizer steps``."""
    under: tuple[Line, ...] = ()
    not_under: tuple[Line, ...] = ()
    """Schedules under which claims and limits allow such cases, but none was executed."""


class Totals(_Data, frozen=True, kw_only=True):
    """Sums over the run."""

    judgements: int
    executions: int
    distinct_cases: int
    distinct_cases_several_ranks: int
    """Distinct executed cases with p ≥ 2."""
    pairs: tuple[Pairs, ...] = ()
    together: tuple[Together, ...] = ()
    """The pairs of claimed things that are possible under the chosen schedules."""


class Result(_Data, frozen=True, kw_only=True):
    """Everything a run found."""

    format: int = RESULT_FORMAT
    product_version: Line
    standard_version: Line
    created: Line
    environment: Environment
    implementation: Implementation
    run: Run
    totals: Totals
    cells: tuple[Cell, ...]
    rules: dict[str, str] = {}
    """By id, the digest of every requirement of the standard that was used."""
    expectations: Expectations | None = None
    coverage: Coverage | None = None
    """What the cases executed of the implementation's packages; None if this was not measured."""


def line_of(message: str, where: str) -> str:
    """The first line of a violation's message, and its place."""
    first = message.strip().partition("\n")[0]
    return f"{first} ({where})" if where else first


class _Versioned(msgspec.Struct, frozen=True):
    """The field that every format has."""

    format: int | str | None = None


def as_json(result: Result, *, indent: int = 1) -> bytes:
    """The contents of the result file; a negative `indent` gives the fewest bytes."""
    return msgspec.json.format(msgspec.json.encode(result), indent=indent)


def write_result(result: Result, path: Path, *, indent: int = 1) -> None:
    """Write the file completely or not at all; `indent` is as in `as_json`.

    Raises:
        BadResultError: the folder cannot be written; the message names it.
    """
    try:
        with whole_file(path) as part:
            part.write_bytes(as_json(result, indent=indent))
    except OSError as error:
        raise BadResultError(
            f"cannot write {path}: {error.strerror or error}; choose another --out"
        ) from error


def read_result(path: Path) -> Result:
    """Read and validate a result file; a folder stands for the ``result.json`` in it.

    Raises:
        BadResultError: it cannot be read, is not a result, or is of another format version.
    """
    if path.is_dir():
        path /= RESULT_NAME
    try:
        data = file_bytes(path, error=BadResultError)
    except BadResultError as error:
        if path.exists():
            raise
        raise BadResultError(f"{error}; 'pipeconform run' writes result files") from None
    version = decoded_json(data, _Versioned, source=path, what="a result file", error=BadResultError).format
    if version not in _READABLE:
        raise BadResultError(
            f"{path}: result format {version!r}; this version reads {_READABLE[0]} to {_READABLE[-1]}"
        )
    return decoded_json(
        data, Result, source=path, what="a result file", error=BadResultError, dec_hook=case_of
    )


def decode_cell(data: str | bytes) -> Cell:
    """Read one cell from JSON that our own worker sent, without checks for hostile input."""
    return msgspec.json.decode(data, type=Cell, dec_hook=case_of)


def schema() -> dict[str, Any]:
    """The JSON Schema of the result file."""
    return schema_with_cases(Result)
