"""The expectations file: known failures, each with a reason, an owner and an expiry date.

Reading is strict: an incomplete or unknown entry is refused with its line number, because an unexplained expectation
hides the next defect.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from pipeconform.case.any_case import AnyCase, decode_any_case
from pipeconform.entries import Entry, read_entries
from pipeconform.errors import BadCaseError, BadExpectationsError, UnknownNameError
from pipeconform.reading import MOST_CASE_BYTES, file_bytes
from pipeconform.report.result import Cell, Violation
from pipeconform.spec import standard_versions
from pipeconform.spec.wrappers import any_requirement
from pipeconform.supported import is_release_range, is_within

__all__ = [
    "FIELDS",
    "Expectation",
    "ExpectationsFile",
    "StoredCase",
    "is_link",
    "read_expectations",
    "require_sane_clock",
]

_MOST_BYTES = 16 << 20
FIELDS = ("requirement", "status", "signature", "reason", "issue", "owner", "expires")
"""The fields that every entry must have."""
FILLED_BY_PEOPLE = ("reason", "issue", "owner", "expires")
"""Those of them that a proposal leaves empty."""

_SLACK = datetime.timedelta(days=1)  # for time zones

ExpectedStatus = Literal["failed", "hung", "crashed", "error", "passed", "flaky"]
_CHANCE: frozenset[ExpectedStatus] = frozenset({"passed", "flaky"})


class StoredCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case that showed an expected failure, and its path relative to the expectations file."""

    path: str
    case: AnyCase
    text: str = ""
    """The first line of the violation's message, and its place; empty if that may change."""


class _Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry as written in the file."""

    requirement: str
    status: ExpectedStatus | tuple[ExpectedStatus, ...]
    signature: str
    reason: str
    issue: str
    owner: str
    expires: datetime.date
    schedules: tuple[str, ...] = ()
    p: tuple[int, ...] = ()
    v: tuple[int, ...] = ()
    device: str = ""
    torch: str = ""
    """A range of releases: ``>=2.14``."""
    cases: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    """What each of `cases` shows, as in `StoredCase`: another violation of the same kind is then not expected."""
    seen: str = ""
    """How often the failure showed when the entry was written."""
    cause: str = ""
    """What is behind it, in words: entries with the same cause belong together."""


class Expectation(_Written, frozen=True, kw_only=True):
    """One expected failure, limited to `schedules`, `p`, `v`, `device` and `torch` where they are not empty."""

    file: str
    line: int
    stored: tuple[StoredCase, ...] = ()
    lacking: tuple[str, ...] = ()
    """The fields of `FILLED_BY_PEOPLE` that are still empty; never any where drafts are refused."""

    @property
    def label(self) -> str:
        """The entry's place: ``pipeconform-expectations.toml:12``."""
        return f"{self.file}:{self.line}"

    @property
    def statuses(self) -> tuple[ExpectedStatus, ...]:
        """All statuses that the entry allows."""
        return (self.status,) if isinstance(self.status, str) else self.status

    @property
    def is_chance(self) -> bool:
        """Whether the failure is expected to show only sometimes, so that a pass is no surprise."""
        return bool(_CHANCE & {*self.statuses})

    def covers(self, cell: Cell, violation: Violation, *, device: str, torch: str) -> bool:
        """Whether the entry expects a violation of a cell that was judged on this device with this torch."""
        return self.is_about(
            requirement=cell.requirement, schedule=cell.schedule, device=device, torch=torch
        ) and self.shows(violation.status, violation.signature, case=violation.case)

    def shows(self, status: str, signature: str, *, case: AnyCase) -> bool:
        """Whether the entry expects `case` to show a violation with this status and signature."""
        return (
            status in {*self.statuses} - _CHANCE
            and signature == self.signature
            and self.covers_size(num_ranks=case.num_ranks, stages_per_rank=case.stages_per_rank)
        )

    @property
    def told(self) -> str:
        """The statuses and the signature in words: ``failed or hung 'gradient value'``."""
        return f"{' or '.join(one for one in self.statuses if one not in _CHANCE)} '{self.signature}'"

    def is_about(self, *, requirement: str, schedule: str, device: str, torch: str) -> bool:
        """Whether the entry applies to this requirement under this schedule on this device with this torch."""
        return (
            requirement == self.requirement
            and (not self.schedules or schedule in self.schedules)
            and self.is_for(device=device, torch=torch)
        )

    def is_for(self, *, device: str, torch: str) -> bool:
        """Whether the entry applies to runs on this device with this version of torch."""
        return self.device in ("", device) and (not self.torch or is_within(torch, self.torch))

    def covers_size(self, *, num_ranks: int, stages_per_rank: int) -> bool:
        """Whether the entry applies to this p and v."""
        return (not self.p or num_ranks in self.p) and (not self.v or stages_per_rank in self.v)


class ExpectationsFile(msgspec.Struct, frozen=True, kw_only=True):
    """All expectations of one file, in order."""

    name: str
    digest: str
    """The SHA-256 of the file's contents."""
    entries: tuple[Expectation, ...]


def read_expectations(path: Path, *, drafts: bool = False) -> ExpectationsFile:
    """Read and validate an expectations file and the cases it names.

    With `drafts`, fields that people have not filled in yet may be empty; without a date, an entry does not expire.

    Raises:
        BadExpectationsError: the file cannot be read, is not TOML, or has an incomplete or wrong entry; the message
            names the line and what to change there.
    """
    data = file_bytes(path, error=BadExpectationsError, most=_MOST_BYTES)
    entries = tuple(
        _expectation(entry, path=path, drafts=drafts)
        for entry in read_entries(data, name="expect", source=str(path), error=BadExpectationsError)
    )
    return ExpectationsFile(name=path.name, digest=hashlib.sha256(data).hexdigest(), entries=entries)


def is_link(text: str) -> bool:
    """Whether an entry's issue is a link."""
    return re.match(r"https?://\S+$", text) is not None


def require_sane_clock(today: datetime.date) -> None:
    """Check that the clock is not behind the standard's date; entries might otherwise never expire.

    Raises:
        BadExpectationsError: the clock is behind.
    """
    newest = standard_versions()[0]
    if today < newest.date - _SLACK:
        raise BadExpectationsError(
            f"the clock of this machine says {today}, but standard {newest.version} is from {newest.date}: "
            f"expiry dates cannot be checked; set the clock"
        )


def _expectation(entry: Entry, *, path: Path, drafts: bool) -> Expectation:
    lacking: tuple[str, ...] = ()
    if drafts:
        lacking = entry.absent(FILLED_BY_PEOPLE)
        filled = {name: datetime.date.max if name == "expires" else "" for name in lacking}
        entry = replace(entry, row={**entry.row, **filled})
    required = [name for name in FIELDS if name not in lacking]
    only_people = {*entry.absent(required)} <= {*FILLED_BY_PEOPLE}
    written = entry.decoded(
        _Written,
        required=required,
        text=f"every entry needs {', '.join(FIELDS)}"
        + ("; 'pipeconform expect fill' fills them in" if only_people else ""),
    )
    statuses = (written.status,) if isinstance(written.status, str) else written.status
    if not {*statuses} - _CHANCE:
        text = f"status {list(statuses)} names no violation; expected failed, hung, crashed or error in it"
        raise entry.refusal("status", text)
    try:
        known = any_requirement(written.requirement).id
    except UnknownNameError as error:
        raise entry.refusal("requirement", str(error)) from error
    if "issue" not in lacking and not is_link(written.issue):
        raise entry.refusal("issue", f"issue {written.issue!r} is not a link; expected https://…")
    if written.texts and len(written.texts) != len(written.cases):
        text = f"{len(written.texts)} texts for {len(written.cases)} cases; expected one each, empty if it may change"
        raise entry.refusal("texts", text)
    if written.torch and not is_release_range(written.torch):
        text = f"torch {written.torch!r} is no range of releases; expected '>=2.14' or '>=2.12,<2.14'"
        raise entry.refusal("torch", text)
    stored = []
    for name, shown in itertools.zip_longest(written.cases, written.texts, fillvalue=""):
        try:
            data = file_bytes(
                path.parent / name, error=BadCaseError, most=MOST_CASE_BYTES, name=f"the case {name}"
            )
            case = decode_any_case(data, source=name)
        except BadCaseError as error:
            raise entry.refusal("cases", str(error)) from error
        stored.append(StoredCase(path=name, case=case, text=shown))
    fields = msgspec.structs.asdict(written) | {"requirement": known}
    return Expectation(**fields, file=path.name, line=entry.line, stored=tuple(stored), lacking=lacking)
