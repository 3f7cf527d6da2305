"""The causes of two results: which are new, which are gone, and which both have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from pipeconform.report.cause_text import shown_as
from pipeconform.report.causes import Cause, Known, causes_of
from pipeconform.report.causes.harm import WORDS
from pipeconform.report.causes.traits import traits_of
from pipeconform.report.change import what
from pipeconform.report.result import Result

__all__ = ["CauseChange", "CauseKind", "cause_changes"]

CauseKind = Literal["new", "fixed", "lost", "same"]
"""new: only the new result has it; fixed: only the old one; lost: only the old one, and the new one judges none of its
cells; same: both have it."""


class CauseChange(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, compared between two results."""

    kind: CauseKind
    requirement: str
    """The requirement that says best what is wrong."""
    title: str
    harm: str
    signature: str
    schedules: tuple[str, ...]
    known: tuple[str, ...] = ()
    """The findings that it is known as."""
    also: tuple[str, ...] = ()
    """Requirements that it violates in the new result, and neither violates nor blocks in the old one."""
    no_longer: tuple[str, ...] = ()
    """Requirements that it violates in the old result, and neither violates nor blocks in the new one."""
    also_under: tuple[str, ...] = ()
    """Schedules under which it shows in the new result only."""


def cause_changes(
    old: Result, new: Result, *, known: Sequence[Known] | None = None
) -> tuple[CauseChange, ...]:
    """Compare the causes of two results: new ones first, then those that are gone, then those of both.

    Which violations a cause blocks makes no difference. Causes that are expected in the new result are not new.
    """
    before, after = ([_Seen(cause) for cause in causes_of(one, known=known)] for one in (old, new))
    pairs = [(seen.cause, [one.cause for one in before if one.is_same(seen)]) for seen in after]
    matched = {id(one) for _, several in pairs for one in several}
    judged = {(cell.requirement, cell.schedule, cell.variant) for cell in new.cells if cell.is_judged}
    return (
        *(_change("new", cause) for cause, several in pairs if not several and not cause.expected),
        *(
            _change("fixed" if judged & set(_cells(cause)) else "lost", cause)
            for cause in (one.cause for one in before)
            if id(cause) not in matched
        ),
        *(_change("same", cause, several) for cause, several in pairs if several),
    )


class _Seen:
    """A cause, with what identifies it in another result."""

    def __init__(self, cause: Cause) -> None:
        self.cause = cause
        self.root = cause.known[0].root if cause.known else None
        self.violations = frozenset(_violations(cause))
        self.traits = frozenset(traits for one in cause.own if (traits := traits_of(one.violation)).place)

    def is_same(self, other: _Seen) -> bool:
        """Whether two results show the same cause: one finding, or violations that are the same or alike."""
        if self.root is not None and other.root is not None:
            return self.root == other.root
        if self.violations & other.violations:
            return True
        return any(mine.is_like(theirs) for mine in self.traits for theirs in other.traits)


def _violations(cause: Cause) -> Iterator[tuple[object, ...]]:
    """What a cause shows, under all schedules, without wording."""
    for one in (*cause.own, *cause.blocked):
        key = (one.violation.status, one.violation.signature)
        yield one.requirement, what(key) or key


def _cells(cause: Cause) -> Iterator[tuple[str, str, str]]:
    for one in cause.own or cause.blocked:
        yield one.requirement, one.schedule, one.cell.variant


def _change(kind: CauseKind, cause: Cause, before: Sequence[Cause] = ()) -> CauseChange:
    names = {name for one in before for name in one.requirements}
    effects = {name for one in before for name in one.blocked_requirements}
    schedules = {name for one in before for name in one.schedules}
    return CauseChange(
        kind=kind,
        requirement=cause.requirement,
        title=cause.title,
        harm=WORDS[cause.harm],
        signature=shown_as(cause),
        schedules=cause.schedules,
        known=tuple(f"{entry.id}: {entry.title}" for entry in cause.known),
        also=tuple(name for name in cause.requirements if name not in names | effects) if before else (),
        no_longer=tuple(sorted(names - {*cause.requirements, *cause.blocked_requirements})),
        also_under=tuple(name for name in cause.schedules if name not in schedules) if before else (),
    )
