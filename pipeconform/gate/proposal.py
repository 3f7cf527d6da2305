"""Proposes an expectations file from a result.

What people wrote (reason, issue, owner, expiry date, sizes) is kept. New entries have empty fields, which the strict
reader refuses until they are filled in.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pipeconform.case.any_case import AnyCase, schedule_of
from pipeconform.errors import BadExpectationsError
from pipeconform.gate.expectations import Expectation, ExpectationsFile
from pipeconform.report.causes import causes_of
from pipeconform.report.result import Cell, Result, Violation
from pipeconform.showing import shown_line
from pipeconform.writing import whole_file

__all__ = ["Proposal", "covers", "propose", "toml_value", "write_proposal"]

_FOLDER = "pipeconform-expectations"
_MOST_WORDS = 120
_HEAD = (
    "# Known failures. 'pipeconform run --expectations' fails on every other failure, and on every entry\n"
    "# here that is incomplete, expired, or no longer shown by any case.\n"
    "format = 1\n"
)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The text of the file, and the cases to store beside it."""

    text: str
    cases: dict[str, AnyCase]
    """The cases by path, relative to the file."""


def propose(
    result: Result,
    existing: ExpectationsFile | None = None,
    *,
    others: Sequence[Result] = (),
    reason: str = "",
    issue: str = "",
    owner: str = "",
    expires: datetime.date | None = None,
) -> Proposal:
    """The file with which `result` would pass: every failure that it shows, and no other.

    `reason`, `issue`, `owner` and `expires` fill the fields of new entries. Entries about anything that the result did
    not judge are kept. `others` are further results of the same implementation: a failure that only some results show,
    or that one of them found flaky, is expected to show by chance.
    """
    cases: dict[str, AnyCase] = {}
    blocks: dict[str, list[str]] = {}
    causes = _causes((result, *others))
    entries = () if existing is None else existing.entries
    for entry in entries:
        fields = _kept(entry, result, cases)
        if fields is not None:
            blocks.setdefault(entry.cause, []).append(_toml(fields))
    for chance, shown in _new((result, *others), entries):
        cell, violation = shown[0]
        cause = causes.get((cell.requirement, violation.status, violation.signature), _Named())
        paths: dict[str, str] = {}
        for _, one in shown:
            path = f"{_FOLDER}/{one.id.replace(':', '.')}.json"
            if cases.setdefault(path, one.case) == one.case:
                paths.setdefault(path, "" if chance else _steady(one))
                paths[path] = paths[path] if paths[path] == _steady(one) else ""
            if one.large is not None and not chance and _steady(one):
                path = f"{_FOLDER}/{one.id.replace(':', '.')}.large.json"
                cases[path], paths[path] = one.large.case, one.large.line
        fields = {
            "requirement": cell.requirement,
            "schedules": list(dict.fromkeys(c.schedule for c, _ in shown)),
            "status": [violation.status, "flaky", "passed"] if chance else violation.status,
            "signature": violation.signature,
            "reason": reason or cause.known,
            "issue": issue or cause.thread,
            "owner": owner,
            "expires": "" if expires is None else expires,
            **({"cause": cause.words} if cause.words else {}),
            "cases": list(paths),
            **({"texts": list(paths.values())} if any(paths.values()) else {}),
            **({"seen": chance} if chance else {}),
        }
        blocks.setdefault(cause.words, []).append(_toml(fields))
    parts = [part for cause, own in blocks.items() for part in _under_heading(cause, own)]
    return Proposal(text="\n".join([_HEAD, *parts]), cases=cases)


@dataclass(frozen=True, kw_only=True)
class _Named:
    """A cause in words, and the finding that it is known as."""

    words: str = ""
    known: str = ""
    thread: str = ""


def _causes(results: Sequence[Result]) -> dict[tuple[str, str, str], _Named]:
    """The cause of every violation, by requirement, status and signature."""
    found: dict[tuple[str, str, str], _Named] = {}
    for cause in (one for result in results for one in causes_of(result)):
        words = (
            f"{cause.requirement} {cause.title}".rstrip()
            + f": {shown_line(cause.violation.signature, limit=_MOST_WORDS)}"
        )
        known = cause.known[0] if cause.known else None
        named = (
            _Named(words=words)
            if known is None
            else _Named(words=words, known=known.title, thread=known.thread)
        )
        for one in (*cause.own, *cause.blocked):
            violation = one.violation
            found.setdefault((one.requirement, violation.status, violation.signature), named)
    return found


def _under_heading(cause: str, blocks: list[str]) -> Iterator[str]:
    """The entries of one cause; several are under a line that says so."""
    if cause and len(blocks) > 1:
        yield f"# {len(blocks)} entries of one cause, {cause}\n"
    yield from blocks


def write_proposal(proposal: Proposal, path: Path) -> None:
    """Write the file and its cases.

    Raises:
        BadExpectationsError: a file cannot be written.
    """
    for name, data in [
        *((one, msgspec.json.encode(case)) for one, case in proposal.cases.items()),
        (path.name, proposal.text.encode()),
    ]:
        target = path.parent / name
        try:
            with whole_file(target) as part:
                part.write_bytes(data)
        except OSError as error:
            raise BadExpectationsError(f"cannot write {target}: {error.strerror or error}") from error


def _steady(violation: Violation) -> str:
    """What the case of a violation shows every time, if that does not depend on values or on which rank ends first."""
    steady = violation.status == "failed" and violation.localisation is None and violation.confirmed
    return violation.line if steady else ""


def covers(entry: Expectation, cell: Cell, violation: Violation, result: Result) -> bool:
    """Whether the entry covers the violation, by contents and not by line: the file may have been edited since."""
    place = result.environment
    return entry.covers(cell, violation, device=place.device, torch=place.torch)


def _new(
    results: Sequence[Result], entries: Iterable[Expectation]
) -> Iterator[tuple[str, list[tuple[Cell, Violation]]]]:
    """Violations that no entry covers, grouped over schedules, with how often each shows by chance."""
    known = tuple(entries)
    found: dict[tuple[str, str, str], list[tuple[Cell, Violation]]] = {}
    for result in results:
        broken = {(cell.requirement, cell.schedule, cell.variant) for cell in result.cells if cell.violations}
        for cell in result.cells:
            for violation in cell.violations:
                if (violation.blocked_by, cell.schedule, cell.variant) in broken:
                    continue  # an entry about the blocker is enough
                if not any(covers(entry, cell, violation, result) for entry in known):
                    key = (cell.requirement, violation.status, violation.signature)
                    found.setdefault(key, []).append((cell, violation))
    for shown in found.values():
        by_chance: dict[str, list[tuple[Cell, Violation]]] = {}
        for cell, violation in shown:
            by_chance.setdefault(_chance(cell, violation, results), []).append((cell, violation))
        yield from by_chance.items()


def _chance(cell: Cell, violation: Violation, results: Sequence[Result]) -> str:
    """How often a violation shows, in words; empty if it shows every time."""
    key = (cell.requirement, cell.schedule, cell.variant)
    judged = [
        one
        for result in results
        for one in result.cells
        if (one.requirement, one.schedule, one.variant) == key and one.is_judged
    ]
    alike = [
        [v for v in one.violations if (v.status, v.signature) == (violation.status, violation.signature)]
        for one in judged
    ]
    runs = sum(map(bool, alike))
    flaky = [v for several in alike for v in several if not v.confirmed]
    if runs == len(judged) and not flaky:
        return ""
    again, reruns = sum(v.shown_again for v in flaky), sum(v.reruns for v in flaky)
    executions = f", {again} of {reruns} executions of its case" if flaky else ""
    return f"{runs} of {len(judged)} runs{executions}"


def _kept(entry: Expectation, result: Result, cases: dict[str, AnyCase]) -> dict[str, object] | None:
    """An existing entry with the schedules and cases that still show it; None if there are none."""
    cells = [cell for cell in result.cells if cell.requirement == entry.requirement]
    place = result.environment
    here = entry.is_for(device=place.device, torch=place.torch)  # what is known elsewhere is kept
    judged = {cell.schedule for cell in cells if cell.is_judged and here}
    shown: dict[str, Violation] = {}
    for cell in cells:
        for violation in cell.violations:
            if covers(entry, cell, violation, result):
                shown.setdefault(cell.schedule, violation)
    if entry.schedules:
        schedules = [one for one in entry.schedules if one in shown or one not in judged]
        schedules = list(entry.schedules) if entry.is_chance else schedules
        if not schedules:
            return None
    else:
        schedules = []
        if judged and not shown and not entry.is_chance:
            return None
    stale = {path for cell in cells for path in cell.stale}
    paths = {stored.path: stored.text for stored in entry.stored if stored.path not in stale}
    held = {schedule_of(stored.case) for stored in entry.stored if stored.path in paths}
    for schedule, violation in shown.items():
        if schedule not in held:
            path = f"{_FOLDER}/{violation.id.replace(':', '.')}.json"
            cases[path] = violation.case
            paths[path] = "" if entry.is_chance else _steady(violation)
    fields: dict[str, object] = {
        "requirement": entry.requirement,
        "schedules": schedules,
        "p": list(entry.p),
        "v": list(entry.v),
        "device": entry.device,
        "torch": entry.torch,
        "status": entry.status,
        "signature": entry.signature,
        "reason": entry.reason,
        "issue": entry.issue,
        "owner": entry.owner,
        "expires": "" if "expires" in entry.lacking else entry.expires,
        "cause": entry.cause,
        "cases": list(paths),
        "texts": list(paths.values()) if any(paths.values()) else [],
        "seen": entry.seen,
    }
    optional = ("schedules", "p", "v", "device", "torch", "cause", "cases", "texts", "seen")
    return {name: value for name, value in fields.items() if value or name not in optional}


def _toml(fields: dict[str, object]) -> str:
    lines = [f"{name} = {toml_value(value)}" for name, value in fields.items()]
    return "\n".join(["[[expect]]", *lines, ""])


def toml_value(value: object) -> str:
    """A TOML value: JSON's strings, integers and lists are valid TOML, except for the control character DEL."""
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Iterable) and not isinstance(value, str):
        return f"[{', '.join(toml_value(one) for one in value)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
