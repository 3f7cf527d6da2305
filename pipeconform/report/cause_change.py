"""How the causes of a result changed since another one; the gate and the page both use this module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeconform.report.causes import Cause, Known, causes_of
from pipeconform.report.causes.traits import traits_of
from pipeconform.report.change import what
from pipeconform.report.result import Result

__all__ = ["CauseKind", "MatchedCause", "matched_causes"]

CauseKind = Literal["new", "fixed", "lost", "same"]
"""new: only the new result has it; fixed: only the old one; lost: only the old one, and the new one judges none of its
cells; same: both have it."""


@dataclass(frozen=True, kw_only=True)
class MatchedCause:
    """A cause of one of two results, with those of the old result that are the same."""

    kind: CauseKind
    cause: Cause
    """As the new result has it; if it is fixed or lost, as the old one had it."""
    before: tuple[Cause, ...] = ()
    spread: tuple[tuple[str, str], ...] = ()
    """Requirements and schedules that were met in the old result, and that a cause of both now violates."""

    @property
    def is_worse(self) -> bool:
        """Whether a cause that both have violates more than before, or does worse harm."""
        return bool(self.spread) or (
            bool(self.before) and self.cause.harm < min(one.harm for one in self.before)
        )


def matched_causes(
    old: Result, new: Result, *, known: Sequence[Known] | None = None
) -> tuple[MatchedCause, ...]:
    """Compare the causes of two results: new ones first, then those that are gone, then those of both.

    Which violations a cause blocks makes no difference. Causes that are expected in the new result are not new.
    """
    before, after = ([_Seen(cause) for cause in causes_of(one, known=known)] for one in (old, new))
    pairs = [(seen.cause, tuple(one.cause for one in before if one.is_same(seen))) for seen in after]
    matched = {id(one) for _, several in pairs for one in several}
    judged = {(cell.requirement, cell.schedule, cell.variant) for cell in new.cells if cell.is_judged}
    met = {
        (cell.requirement, cell.schedule, cell.variant)
        for cell in old.cells
        if cell.is_judged and not cell.violations
    }
    return (
        *(
            MatchedCause(kind="new", cause=cause)
            for cause, several in pairs
            if not several and not cause.expected
        ),
        *(
            MatchedCause(kind="fixed" if judged & set(_cells(cause)) else "lost", cause=cause)
            for cause in (one.cause for one in before)
            if id(cause) not in matched
        ),
        *(
            MatchedCause(
                kind="same",
                cause=cause,
                before=several,
                spread=tuple(dict.fromkeys((name, under) for name, under, at in _own(cause) if at in met)),
            )
            for cause, several in pairs
            if several
        ),
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


def _own(cause: Cause) -> Iterator[tuple[str, str, tuple[str, str, str]]]:
    """The requirement, schedule and cell of every confirmed violation that accuses and is not expected."""
    for one in cause.own:
        if one.violation.confirmed and not one.violation.expected:
            yield one.requirement, one.schedule, (one.requirement, one.schedule, one.cell.variant)
