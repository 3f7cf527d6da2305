"""Proposing an expectations file from a result.

What people wrote (reason, issue, owner, expiry date, sizes) is kept. What is new gets empty fields, which the
strict reader refuses until somebody has filled them in.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeconform.case.any_case import AnyCase, schedule_of
from pipeconform.errors import BadExpectationsError
from pipeconform.gate.expectations import Expectation, ExpectationsFile
from pipeconform.report.result import Cell, Result, Violation

__all__ = ["Proposal", "propose", "write_proposal"]

_FOLDER = "pipeconform-expectations"
_HEAD = (
    "# Failures that are known. 'pipeconform run --expectations' fails on everything else, and on every\n"
    "# entry here that is incomplete, expired, or shown by nothing any more.\n"
    "format = 1\n"
)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The text of the file, the cases to keep beside it, and what cannot be expected."""

    text: str
    cases: dict[str, AnyCase]
    """By path, relative to the file."""
    left_out: tuple[str, ...]
    """Violations that no entry can stand for, each with the reason."""


def propose(
    result: Result,
    existing: ExpectationsFile | None = None,
    *,
    reason: str = "",
    issue: str = "",
    owner: str = "",
    expires: datetime.date | None = None,
) -> Proposal:
    """The file that would let `result` pass: every failure it shows, and no other.

    `reason`, `issue`, `owner` and `expires` fill the fields of new entries. Entries about what the result did
    not judge are kept as they are.
    """
    left_out: list[str] = []
    cases: dict[str, AnyCase] = {}
    blocks = [_HEAD]
    entries = () if existing is None else existing.entries
    for entry in entries:
        text = _kept(entry, result, cases)
        if text is not None:
            blocks.append(text)
    for shown in _new(result, entries, left_out):
        cell, violation = shown[0]
        paths = []
        for _, one in shown:
            path = f"{_FOLDER}/{one.id.replace(':', '.')}.json"
            cases[path] = one.case
            paths.append(path)
        fields: dict[str, object] = {
            "requirement": cell.requirement,
            "schedules": list(dict.fromkeys(c.schedule for c, _ in shown)),
            "status": violation.status,
            "signature": violation.signature,
            "reason": reason,
            "issue": issue,
            "owner": owner,
            "expires": "" if expires is None else expires,
            "cases": paths,
        }
        blocks.append(_toml(fields))
    return Proposal(text="\n".join(blocks), cases=cases, left_out=tuple(left_out))


def write_proposal(proposal: Proposal, path: Path) -> None:
    """Write the file and its cases.

    Raises:
        BadExpectationsError: a file cannot be written; the message names it.
    """
    for name, data in [
        *((one, msgspec.json.encode(case)) for one, case in proposal.cases.items()),
        (path.name, proposal.text.encode()),
    ]:
        target = path.parent / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as error:
            raise BadExpectationsError(f"cannot write {target}: {error.strerror or error}") from error


def _covers(entry: Expectation, cell: Cell, violation: Violation, result: Result) -> bool:
    """By what the entry says, not by its line: the file may have been edited since the run."""
    case = violation.case
    return (
        entry.is_about(requirement=cell.requirement, schedule=cell.schedule, device=result.environment.device)
        and (entry.status, entry.signature) == (violation.status, violation.signature)
        and entry.covers_size(num_ranks=case.num_ranks, stages_per_rank=case.stages_per_rank)
    )


def _new(
    result: Result, entries: Iterable[Expectation], left_out: list[str]
) -> Iterator[list[tuple[Cell, Violation]]]:
    """Violations that no entry covers, the same one under several schedules together."""
    found: dict[tuple[str, ...], list[tuple[Cell, Violation]]] = {}
    for cell in result.cells:
        for violation in cell.violations:
            if any(_covers(entry, cell, violation, result) for entry in entries):
                continue
            if not violation.confirmed:
                left_out.append(f"{violation.id} is flaky: an entry would pass and fail by chance; mend it")
                continue
            key = (cell.requirement, violation.status, violation.signature)
            found.setdefault(key, []).append((cell, violation))
    yield from found.values()


def _kept(entry: Expectation, result: Result, cases: dict[str, AnyCase]) -> str | None:
    """An existing entry with the schedules and cases that still hold; None if nothing shows it any more."""
    cells = [cell for cell in result.cells if cell.requirement == entry.requirement]
    judged = {cell.schedule for cell in cells if cell.is_judged}
    shown: dict[str, Violation] = {}
    for cell in cells:
        for violation in cell.violations:
            if _covers(entry, cell, violation, result):
                shown.setdefault(cell.schedule, violation)
    if entry.schedules:
        schedules = [one for one in entry.schedules if one in shown or one not in judged]
        if not schedules:
            return None
    else:
        schedules = []
        if judged and not shown:
            return None
    stale = {path for cell in cells for path in cell.stale}
    paths = [stored.path for stored in entry.stored if stored.path not in stale]
    held = {schedule_of(stored.case) for stored in entry.stored if stored.path in paths}
    for schedule, violation in shown.items():
        if schedule not in held:
            path = f"{_FOLDER}/{violation.id.replace(':', '.')}.json"
            cases[path] = violation.case
            paths.append(path)
    fields: dict[str, object] = {
        "requirement": entry.requirement,
        "schedules": schedules,
        "p": list(entry.p),
        "v": list(entry.v),
        "device": entry.device,
        "status": entry.status,
        "signature": entry.signature,
        "reason": entry.reason,
        "issue": entry.issue,
        "owner": entry.owner,
        "expires": entry.expires,
        "cases": list(dict.fromkeys(paths)),
    }
    optional = ("schedules", "p", "v", "device", "cases")
    return _toml({name: value for name, value in fields.items() if value or name not in optional})


def _toml(fields: dict[str, object]) -> str:
    lines = [f"{name} = {_value(value)}" for name, value in fields.items()]
    return "\n".join(["[[expect]]", *lines, ""])


def _value(value: object) -> str:
    """A TOML value: JSON's strings, integers and lists are TOML's, but for the control character DEL."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Iterable) and not isinstance(value, str):
        return f"[{', '.join(_value(one) for one in value)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
