"""Shrinks a failing case with Hypothesis, which draws until it reaches the case and shrinks from there.

Every candidate is executed. It counts only if it shows the same violation: the same requirement, status and
signature, so that shrinking never moves from one defect to another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from pipeconform.campaign.corpus import Drawable, Interesting, run_strategy
from pipeconform.campaign.runner import CaseT
from pipeconform.judge.outcome import Outcome

__all__ = ["Budget", "Smallest", "minimise"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limit of shrinking, in executions: the clock would make the smallest case depend on the machine.

    A candidate that was executed for another violation counts, too, so that the smallest case does not depend on that.
    """

    executions: int


@dataclass(frozen=True, kw_only=True)
class Smallest(Generic[CaseT]):
    """The smallest case found that shows a violation."""

    case: CaseT
    outcome: Outcome
    minimal: bool
    confirmed: bool
    executions: int
    reruns: int = 0
    shown_again: int = 0
    """How many of the reruns showed the violation again."""
    shown_otherwise: int = 0
    """How many of the reruns showed another violation instead."""


class _BudgetSpent(BaseException):
    """Ends Hypothesis' search at once; not an `Exception`, which Hypothesis would shrink too."""


def minimise(
    corpus: Drawable[CaseT],
    target: CaseT,
    outcome: Outcome,
    check: Callable[[CaseT], Outcome | None],
    *,
    budget: Budget,
    purpose: str = "corpus",
) -> Smallest[CaseT]:
    """Shrink `target`, a case of `corpus` that showed `outcome`.

    `check` executes a case and returns the outcome of the same kind, or None. Returns the target itself,
    unconfirmed, if it does not show the violation again.
    """
    best: Smallest[CaseT] | None = None
    executions = 0
    known: dict[str, bool] = {}

    def body(case: CaseT) -> bool:
        nonlocal best, executions
        if best is None and case.digest != target.digest:
            return False
        if case.digest in known:
            # Hypothesis runs its final example again, which needs no second execution
            return known[case.digest]
        if best is not None and executions >= budget.executions:
            raise _BudgetSpent
        executions += 1
        shown = check(case)
        known[case.digest] = shown is not None
        if shown is None:
            if best is None:
                raise _BudgetSpent  # the target itself does not fail again
            return False
        best = Smallest(case=case, outcome=shown, minimal=False, confirmed=True, executions=executions)
        return True

    finished = False
    try:
        run_strategy(corpus, body, max_examples=corpus.size, purpose=purpose, shrink=True)
    except Interesting:
        finished = True
    except _BudgetSpent:
        pass
    if best is None:
        return Smallest(case=target, outcome=outcome, minimal=False, confirmed=False, executions=executions)
    return Smallest(
        case=best.case, outcome=best.outcome, minimal=finished, confirmed=True, executions=executions
    )
