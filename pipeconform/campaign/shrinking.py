"""Makes the violations of a cell small, and executes what is small again to see whether it shows the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Generic, NamedTuple

from pipeconform.campaign.corpus import Drawable
from pipeconform.campaign.executions import CellExecutions, Key
from pipeconform.campaign.minimise import Budget, Smallest
from pipeconform.campaign.runner import CaseT, ExecutionT
from pipeconform.judge.outcome import Outcome, Status

__all__ = ["AGAIN", "First", "Shrinking"]

AGAIN = 2
"""Which execution of a case shows whether it shows again what its first one showed."""
_RERUNS = 4
"""Further executions of a case that did not show its violation every time."""
_HANGS = 20
"""Executions for shrinking all hangs of a cell together: each costs a wait and new processes."""
_COST: Mapping[Status, int] = {Status.HUNG: 20, Status.CRASHED: 6, Status.ERROR: 3}
"""What an execution with this end costs, in executions of a case that only computes wrong values, which cost 1."""


class First(NamedTuple, Generic[CaseT]):
    """Where a violation was first found; `corpus` is None for a stored case."""

    corpus: Drawable[CaseT] | None
    purpose: str
    case: CaseT
    outcome: Outcome
    minimal: bool = False


class Shrinking(Generic[CaseT, ExecutionT]):
    """The shrinking of all violations of one cell, which share what it may cost."""

    def __init__(self, executions: CellExecutions[CaseT, ExecutionT]) -> None:
        self._executions = executions
        self._campaign, self._asked, self._runner = executions.campaign, executions.asked, executions.runner
        profile = self._campaign.profile
        self._hangs_left = _HANGS
        self._cost_left = profile.later_cost if self._asked.is_later else profile.cell_cost

    def smallest(self, key: Key, first: First[CaseT]) -> Smallest[CaseT]:
        """The smallest case of a violation; one that is expected, or was stored, is taken as it was found."""
        if key.expected or first.corpus is None:
            return self._as_found(key, first)
        return self._as_small_as_known(key, first)

    def _as_found(self, key: Key, first: First[CaseT]) -> Smallest[CaseT]:
        """An expected violation, or one from the previous run, which is not shrunk."""
        stored = first.purpose == "stored"  # seen in an earlier run, and again in this one
        again = None if stored else self.check(key, first.case, nth=AGAIN, thorough=True)
        return Smallest(
            case=first.case,
            outcome=first.outcome,
            minimal=first.minimal,
            confirmed=stored or again is not None,
            executions=0,
            reruns=0 if stored else 1,
            shown_again=int(again is not None),
        )

    def check(self, key: Key, candidate: CaseT, *, nth: int = 1, thorough: bool = False) -> Outcome | None:
        """What a candidate shows of the same kind when it is executed for the first, second … time, if anything."""
        if not self._asked.applies(candidate):
            return None
        return self._shown(key, candidate, nth=nth, thorough=thorough).get(key)

    def _shown(self, key: Key, case: CaseT, *, nth: int | None, thorough: bool) -> dict[Key, Outcome]:
        """The first outcome of every kind in an execution of a case that should show `key`.

        The violations of a cell, and of requirements that observe alike, are often made small by the same candidates,
        so the first, second and third execution of a case is shared by all of them; without `nth`, it is a new one.
        """
        self._executions.tell("shrinking")
        # after a hang, communication is recorded: it shows which rank waits for which, and proves a hang sooner
        hung = key.status is Status.HUNG
        execution = self._executions.shared(case, nth=nth, hung=hung)
        judged = self._runner.judged(self._asked.row, case, execution, thorough=thorough)
        return self._executions.keyed(case, judged.outcomes)

    def _as_small_as_known(self, key: Key, first: First[CaseT]) -> Smallest[CaseT]:
        """The case that was found for the same violation under another variant, if it shows it; else the smallest."""
        about = self._asked.row.id, self._asked.column, key.status, key.signature
        known = self._campaign.smallest.get(about)
        if known is not None and self.check(key, known.case) is not None:
            sure = self.check(key, known.case, nth=AGAIN, thorough=True)
            if sure is not None:
                return Smallest(
                    case=known.case, outcome=sure, minimal=known.minimal, confirmed=True, executions=1
                )
        smallest = self._made_small(key, first)
        if smallest.confirmed:
            self._campaign.smallest[about] = smallest
        return smallest

    def _made_small(self, key: Key, first: First[CaseT]) -> Smallest[CaseT]:
        profile, case, outcome = self._campaign.profile, first.case, first.outcome
        assert first.corpus is not None, "only expected violations come from stored cases"

        seen: list[dict[Key, Outcome]] = []

        def check(candidate: CaseT) -> Outcome | None:
            return again(nth=AGAIN) if candidate == case else self.check(key, candidate)

        def again(*, nth: int | None, thorough: bool = False) -> Outcome | None:
            seen.append(self._shown(key, case, nth=nth, thorough=thorough))
            return seen[-1].get(key)

        hangs, cost = outcome.status is Status.HUNG, _COST.get(outcome.status, 1)
        most = min(profile.shrink_cost, self._cost_left) // cost
        budget = Budget(executions=min(self._hangs_left, most) if hangs else most)
        smallest = self._asked.smallest(first.corpus, case, outcome, check, budget=budget)
        self._cost_left -= smallest.executions * cost
        self._hangs_left -= smallest.executions if hangs else 0
        # candidates were judged without bounds; what is reported is judged with them
        sure = None
        if smallest.confirmed and smallest.case == case:
            sure = again(nth=AGAIN + 1, thorough=True)
        elif smallest.confirmed:
            sure = self.check(key, smallest.case, nth=AGAIN, thorough=True)
        if sure is not None:
            return dataclasses.replace(smallest, outcome=sure)
        # same case, same seed, another verdict: flaky, unless every execution is wrong in some way
        if not seen:
            again(nth=AGAIN, thorough=True)
        for _ in range(_RERUNS):
            again(nth=None, thorough=True)
        same, otherwise = sum(key in shown for shown in seen), sum(_instead(key, shown) for shown in seen)
        return Smallest(
            case=case,
            outcome=outcome,
            minimal=False,
            confirmed=same + otherwise == len(seen),
            executions=smallest.executions,
            reruns=len(seen),
            shown_again=same,
            shown_otherwise=otherwise,
        )


def _instead(key: Key, shown: Mapping[Key, Outcome]) -> bool:
    """Whether an execution went wrong in another way that hides `key` or takes its place.

    Wrong values do not hide each other: a wrong value that is missing was right this time, whatever else is wrong.
    """
    return key not in shown and any({key.status, other.status} != {Status.FAILED} for other in shown)
