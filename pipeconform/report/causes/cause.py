"""`Cause`: what is behind one or more violations of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.report.causes.harm import Harm
from pipeconform.report.causes.known import Known
from pipeconform.report.overview import in_order
from pipeconform.report.result import Cell, Status, Violation
from pipeconform.report.words import under

__all__ = ["Cause", "Member", "size_of"]

_MOST = 4  # schedules that are named; of more there is only the number


@dataclass(frozen=True, kw_only=True)
class Member:
    """A violation and the cell that it belongs to."""

    cell: Cell
    violation: Violation

    @property
    def requirement(self) -> str:
        """The requirement that is violated."""
        return self.cell.requirement

    @property
    def schedule(self) -> str:
        """The schedule under which it is violated."""
        return self.cell.schedule


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Violations that have one cause, across requirements and schedules."""

    requirement: str
    """The requirement that says best what is wrong: the most basic one."""
    title: str
    """Its title; empty if the standard does not have it."""
    harm: Harm
    """The worst harm that any of its violations does."""
    violation: Violation
    """The violation that shows it best: one of `requirement` that does the most harm, with the smallest case."""
    own: tuple[Member, ...]
    """The violations that accuse their requirements: those of `requirement` first, then in the order of the standard,
    the most harmful of each first."""
    blocked: tuple[Member, ...]
    """The violations that are only effects of it, because their control shows it, too, in the
    same order."""
    schedules: tuple[str, ...]
    """The schedules under which it was seen, in the order of the result."""
    judged: Mapping[str, frozenset[str]] = field(repr=False, compare=False)
    """The schedules under which each requirement of the result was judged."""
    factor: str = ""
    """The ratio of wrong values to the right ones, as a function of the case if it is one: ``1/m``."""
    known: tuple[Known, ...] = ()
    """The findings that it is known as, the one that stands for it first."""

    @property
    def members(self) -> tuple[Violation, ...]:
        """All its violations: those that accuse, then those that are effects."""
        return tuple(one.violation for one in (*self.own, *self.blocked))

    @property
    def requirements(self) -> tuple[str, ...]:
        """The requirements that it violates; those that are only blocked do not count."""
        return tuple(dict.fromkeys((self.requirement, *(one.requirement for one in self.own))))

    @property
    def others(self) -> tuple[str, ...]:
        """The requirements that it violates, without the telling one."""
        return self.requirements[1:]

    @property
    def blocked_requirements(self) -> tuple[str, ...]:
        """The requirements that it blocks in some cells."""
        return tuple(dict.fromkeys(one.requirement for one in self.blocked))

    @property
    def occurrences(self) -> int:
        """How many cases of its own cells show it."""
        return sum(one.violation.occurrences for one in self.own or self.blocked)

    @property
    def expected(self) -> bool:
        """Whether every violation that accuses a requirement is covered by expectations."""
        return all(one.violation.expected for one in self.own or self.blocked)

    @property
    def chance(self) -> tuple[int, int] | None:
        """If no violation shows every time, in how many of how many executions they showed; otherwise None."""
        members = [one.violation for one in self.own or self.blocked]
        if any(violation.confirmed for violation in members):
            return None
        return sum(one.shown_again for one in members), sum(one.reruns for one in members)

    @property
    def outcomes(self) -> tuple[tuple[Status, str], ...]:
        """How the telling requirement is violated, and under which schedules, as in its row of the matrix.

        The status of `violation` comes first. Without a violation of the requirement's own, because only its effects
        were judged, the status is what their controls showed.
        """
        found: dict[Status, list[Member]] = {}
        for one in self._of(self.requirement):
            found.setdefault(self._status(one.violation), []).append(one)
        return tuple((status, self._words(self.requirement, several)) for status, several in found.items())

    def under(self, requirement: str = "") -> str:
        """``" under …"`` with the schedules and variants under which one requirement shows it.

        It is the telling one by default; what only other requirements add is not counted. Variants are left
        out if all is under the default settings.
        """
        name = requirement or self.requirement
        return self._words(name, self._of(name))

    def _of(self, requirement: str) -> list[Member]:
        """The violations of one requirement; of one that was not judged, the effects that its control explains."""
        return [one for one in self.own if one.requirement == requirement] or list(self.blocked)

    def _status(self, violation: Violation) -> Status:
        if not self.own and violation.control is not None:
            return violation.control.status
        return violation.status if violation.confirmed else "flaky"

    def _words(self, requirement: str, members: Sequence[Member]) -> str:
        seen = {one.schedule for one in members}
        schedules = tuple(name for name in self.schedules if name in seen)
        judged = self.judged.get(requirement, frozenset()) | seen
        if len(seen) == len(judged) > 2 and self.own:
            words = f" under all {len(seen)} schedules"
        elif len(seen) > _MOST:
            words = (
                f" under {len(seen)} of {len(judged)} schedules"
                if self.own
                else f" under {len(seen)} schedules"
            )
        else:
            words = under(*schedules)
        variants = in_order([one.cell.variant for one in members])
        return words if variants == ["default"] else f"{words} ({' and '.join(variants)})"


def size_of(violation: Violation) -> tuple[object, ...]:
    """The sort key of size: confirmed first, then few ranks, stages and microbatches."""
    case = violation.case
    if isinstance(case, WrapperCase):
        passes = sum(len(step.passes) for step in case.steps)
        return (not violation.confirmed, case.num_ranks, 1, passes, len(case.steps), 0, violation.digest)
    return (
        not violation.confirmed,
        case.num_ranks,
        case.num_stages,
        max(run.num_microbatches for run in case.runs),
        len(case.program),
        sum(1 for _ in case.blocks()),
        violation.digest,
    )
