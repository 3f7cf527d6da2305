"""Making a failing pipeline case small: crude cuts first, then smaller ones, until no cut shows the violation any more.

Every candidate is a case that could have been drawn, or a shorter part of one, and is executed anew. It counts only
if it shows the same violation: the same requirement, status and signature. Nothing here depends on chance or on how
the case was found, so the same case ends in the same small one wherever it is made small, given time enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from pipeconform.campaign.minimise import Budget, Smallest
from pipeconform.case.case import Case
from pipeconform.case.simpler.candidates import PARTS, leaps, simpler
from pipeconform.judge.outcome import Outcome

__all__ = ["simplify"]

Check = Callable[[Case], Outcome | None]


class _BudgetSpentError(Exception):
    """No execution is left, or no time."""


def simplify(
    target: Case, outcome: Outcome, check: Check, *, allowed: Callable[[Case], bool], budget: Budget
) -> Smallest[Case]:
    """Make `target`, which showed `outcome`, as simple as `allowed` cases get.

    `check` executes a case and returns the outcome of the same kind, or None. The result is minimal if every cut of
    every part was tried on it in vain. Returns the target itself, unconfirmed, if it does not show the violation again.
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
    """The simplest case so far, and what is known of others."""

    def __init__(self, target: Case, check: Check, budget: Budget) -> None:
        self.case, self._check, self._budget = target, check, budget
        self.outcome: Outcome | None = None
        self.known: set[str] = set()
        """Digests of the cases that were executed."""
        self._deadline = time.monotonic() + budget.seconds

    def shows(self, case: Case) -> bool:
        """Execute a case; from now on it is the simplest if it shows the violation."""
        self.known.add(case.digest)
        found = self._check(case)
        if found is not None:
            self.case, self.outcome = case, found
        return found is not None

    def take_first(self, candidates: Iterable[Case]) -> bool:
        """Go on from the first candidate that shows the violation, if any does.

        Raises:
            _BudgetSpentError: there may be others.
        """
        for candidate in candidates:
            if candidate.digest in self.known:
                continue
            if len(self.known) >= self._budget.executions or time.monotonic() > self._deadline:
                raise _BudgetSpentError
            if self.shows(candidate):
                return True
        return False

    def cut_every_part(self, allowed: Callable[[Case], bool]) -> bool:
        """Cut one part after another as far as it goes; whether anything was cut."""
        begun = self.case
        for part in PARTS:
            while self.take_first(simpler(self.case, part, allowed)):
                pass
        return self.case != begun
