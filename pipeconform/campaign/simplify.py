"""Makes a failing pipeline case small: large cuts first, then smaller ones, until every cut loses the violation.

Every candidate is a case that could have been drawn, or a shorter part of one, and is executed. It counts only if it
shows the same violation: the same requirement, status and signature. The search is deterministic and does not depend
on how the case was found: within the same budget, the same case always ends in the same small case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pipeconform.campaign.minimise import Budget, Smallest
from pipeconform.case.case import Case
from pipeconform.case.simpler.candidates import PARTS, leaps, simpler
from pipeconform.judge.outcome import Outcome

__all__ = ["simplify"]

Check = Callable[[Case], Outcome | None]


class _BudgetSpentError(Exception):
    """The budget of executions is spent."""


def simplify(
    target: Case, outcome: Outcome, check: Check, *, allowed: Callable[[Case], bool], budget: Budget
) -> Smallest[Case]:
    """Find the simplest `allowed` case that shows the same violation as `target`, which showed `outcome`.

    `check` executes a case and returns the outcome of the same kind, or None. The result is minimal if no further cut
    of any part shows the violation. Returns the target itself, unconfirmed, if it does not show the violation again.
    """
    search = _Search(target, check, budget)
    minimal = False
    if search.shows(target):
        try:
            search.take_first(leaps(target, allowed))
            while search.cut_every_part(allowed):
                pass
            minimal = True
        except _BudgetSpentError:
            pass
    return Smallest(
        case=search.case,
        outcome=search.outcome or outcome,
        minimal=minimal,
        confirmed=search.outcome is not None,
        executions=len(search.known),
    )


class _Search:
    """The simplest case so far, and the cases already tried."""

    def __init__(self, target: Case, check: Check, budget: Budget) -> None:
        self.case, self._check, self._budget = target, check, budget
        self.outcome: Outcome | None = None
        self.known: set[str] = set()
        """Digests of the cases that were executed."""

    def shows(self, case: Case) -> bool:
        """Execute a case and keep it as the simplest if it shows the violation."""
        self.known.add(case.digest)
        found = self._check(case)
        if found is not None:
            self.case, self.outcome = case, found
        return found is not None

    def take_first(self, candidates: Iterable[Case]) -> bool:
        """Continue from the first candidate that shows the violation; return whether there was one.

        Raises:
            _BudgetSpentError: the budget ended with candidates left.
        """
        for candidate in candidates:
            if candidate.digest in self.known:
                continue
            if len(self.known) >= self._budget.executions:
                raise _BudgetSpentError
            if self.shows(candidate):
                return True
        return False

    def cut_every_part(self, allowed: Callable[[Case], bool]) -> bool:
        """Cut each part as far as possible; return whether anything was cut."""
        begun = self.case
        for part in PARTS:
            while self.take_first(simpler(self.case, part, allowed)):
                pass
        return self.case != begun
