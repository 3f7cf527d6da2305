"""Makes a failing pipeline case small: large cuts first, then smaller ones, until every cut loses the violation.

Every candidate is a case that could have been drawn, or a shorter part of one, and is executed. It counts only if it
shows the same violation: the same requirement, status and signature. The search is deterministic and does not depend
on how the case was found: within the same budget, the same case always ends in the same small case.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from pipeconform.campaign.minimise import Budget, Smallest
from pipeconform.case.case import Case
from pipeconform.case.simpler.candidates import PARTS, leaps, simpler
from pipeconform.judge.outcome import Outcome

__all__ = ["simplify"]

Check = Callable[[Case], Outcome | None]

_BEFORE_THE_TARGET = 2
"""How many candidates are executed before the target is executed again: most violations show in the first or second."""


class _BudgetSpentError(Exception):
    """The budget of executions is spent."""


def simplify(
    target: Case, outcome: Outcome, check: Check, *, allowed: Callable[[Case], bool], budget: Budget
) -> Smallest[Case]:
    """Find the simplest `allowed` case that shows the same violation as `target`, which showed `outcome`.

    `check` executes a case and returns the outcome of the same kind, or None. The result is minimal if no further cut
    of any part shows the violation. The target itself is executed again only if none of the simplest candidates shows
    it; it is returned, unconfirmed, if it does not show the violation then.
    """
    search = _Search(target, check, budget)
    candidates = leaps(target, allowed)
    minimal = False
    if search.shows_one_of(itertools.islice(candidates, _BEFORE_THE_TARGET)) or search.shows(target):
        try:
            if search.case == target:
                search.take_first(candidates)
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

    def shows_one_of(self, candidates: Iterable[Case]) -> bool:
        """Whether a candidate shows the violation; one execution of the budget is left for the target."""
        within = itertools.islice(candidates, max(self._budget.executions - 1, 0))
        return any(self.shows(one) for one in within if one.digest not in self.known)

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
