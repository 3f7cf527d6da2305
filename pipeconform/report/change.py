"""How a cell changed between two results; the gate and the page both use this module."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeconform.report.causes import Known, causes_of
from pipeconform.report.causes.known import entry_of, known_for
from pipeconform.report.causes.traits import Traits, traits_of
from pipeconform.report.result import Cell, Result, Status, Violation

__all__ = ["CellChange", "Changes", "Key", "Kind", "aligned", "is_judged", "shown", "what"]

Kind = Literal[
    "regressed",
    "new",
    "flaky",
    "lost",
    "less",
    "sometimes",
    "reworded",
    "elsewhere",
    "effect",
    "fixed",
    "added",
]
"""How a verdict changed.

regressed: a violation in a cell that was judged before and did not show it; new: a violation in a cell that was not
judged before; flaky: a violation that does not show every time and was not there before; sometimes: one that was, or
whose finding was and is known to show by chance;
reworded: the same hang, death or type of exception with another message; elsewhere: a violation whose cause another
requirement showed before under the same schedule; effect: a blocked violation, which came or went with what blocks it;
lost: the cell is no longer judged; less: it is judged, but on less than before; fixed: a violation that is gone;
added: a cell that is judged for the first time, and met.
"""

_Word = tuple[Status, str]
_Violations = Mapping[_Word, Violation]

Key = tuple[str, str, str]
"""Requirement, schedule and variant, which identify a cell."""


@dataclass(frozen=True, kw_only=True)
class CellChange:
    """One difference between the verdicts of two cells."""

    kind: Kind
    violation: Violation | None = None
    """The new cell's violation, or the old one's if it is fixed; None where the whole cell was lost or added."""


def aligned(results: Sequence[Result]) -> dict[Key, tuple[Cell | None, ...]]:
    """Every cell that any of `results` has, with each result's version of it, in the order of the last result."""
    keyed = [
        {(cell.requirement, cell.schedule, cell.variant): cell for cell in result.cells} for result in results
    ]
    return {key: tuple(one.get(key) for one in keyed) for one in reversed(keyed) for key in one}


class Changes:
    """Compares the cells of two results, knowing the causes of both."""

    def __init__(self, old: Result, new: Result, *, known: Sequence[Known] | None = None) -> None:
        before, after = causes_of(old, known=known), causes_of(new, known=known)
        self._effects = frozenset(
            one.violation.id for cause in (*before, *after) if cause.own for one in cause.blocked
        )
        entries = known_for(new.implementation.names, known)
        seen = {entry.root for cause in before for entry in cause.known}
        self._chance = frozenset(
            violation.id
            for cell in new.cells
            for violation in cell.violations
            if (entry := entry_of(cell, violation, entries)) and entry.chance and entry.root in seen
        )
        self._earlier: dict[tuple[str, str], list[Traits]] = {}
        for cell in old.cells:
            traits = [traits_of(violation) for violation in cell.violations]
            self._earlier.setdefault((cell.schedule, cell.variant), []).extend(traits)

    def of(self, before: Cell | None, after: Cell | None) -> Iterator[CellChange]:
        """Compare one cell; None stands for a result that has no such cell."""
        place = ("", "") if after is None else (after.schedule, after.variant)
        return _cell_changes(
            before,
            after,
            effects=self._effects,
            chance=self._chance,
            earlier=self._earlier.get(place, ()),
        )


def _cell_changes(
    before: Cell | None,
    after: Cell | None,
    *,
    effects: Container[str],
    chance: Container[str],
    earlier: Collection[Traits],
) -> Iterator[CellChange]:
    """Compare one cell of two results; None stands for a result that has no such cell.

    Two violations are the same if their status and signature are. Expected violations of `after` are not a change.
    `effects` has the ids of violations that another one of their result explains, and `chance` those of violations that
    are known to show by chance and that the old result has, maybe elsewhere. `earlier` are the traits of what the old
    result shows under the same schedule.
    """
    was, now = shown(before), shown(after)
    reworded = _reworded(was, now)
    for key, violation in now.items():
        if violation.expected:
            continue
        if key in was:
            if not violation.confirmed:
                yield CellChange(kind="sometimes", violation=violation)
        elif violation.id in effects:
            yield CellChange(kind="effect", violation=violation)
        elif key in reworded:
            yield CellChange(kind="reworded", violation=violation)
        elif violation.id in chance:
            yield CellChange(kind="sometimes", violation=violation)
        elif earlier and any(traits_of(violation).is_like(one) for one in earlier):
            yield CellChange(kind="elsewhere", violation=violation)
        elif not violation.confirmed:
            yield CellChange(kind="flaky", violation=violation)
        else:
            yield CellChange(kind="regressed" if is_judged(before) else "new", violation=violation)
    if is_judged(after):
        for key, violation in was.items():
            if key not in now and key not in reworded.values():
                kind: Kind = "effect" if violation.id in effects else "fixed"
                yield CellChange(kind=kind, violation=violation)
        if not is_judged(before) and not now:
            yield CellChange(kind="added")
    elif is_judged(before):
        yield CellChange(kind="lost")


def _reworded(was: _Violations, now: _Violations) -> Mapping[_Word, _Word]:
    """Violations that were there before with another message: each new key with the old one.

    If ranks hung, died or raised the same type of exception, the rest of the signature is only wording. For wrong
    values the signature says which values are wrong, so another signature is another violation.
    """
    gone = [key for key in was if key not in now]
    found: dict[_Word, _Word] = {}
    for key in now:
        same = next((one for one in gone if key not in was and what(one) == what(key) and what(key)), None)
        if same is not None:
            gone.remove(same)
            found[key] = same
    return found


def what(key: _Word) -> tuple[str, ...] | None:
    """A violation's status and signature without mere wording; None where the signature is not just wording."""
    status, signature = key
    if status in ("hung", "crashed"):
        return (status,)
    return (status, signature.partition(":")[0]) if status == "error" else None


def shown(cell: Cell | None) -> Mapping[tuple[Status, str], Violation]:
    """A cell's violations by status and signature."""
    return {} if cell is None else {(one.status, one.signature): one for one in cell.violations}


def is_judged(cell: Cell | None) -> bool:
    """Whether a cell has a verdict on the implementation."""
    return cell is not None and cell.is_judged
