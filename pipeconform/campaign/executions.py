"""Executes the cases of one cell; what several cells execute alike is executed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple

from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.runner import CaseT, ExecutionT, Runner
from pipeconform.campaign.target import Asked
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.spec import Requirement
from pipeconform.supported import torch_version

__all__ = ["CellExecutions", "Key"]


class Key(NamedTuple):
    """What distinguishes two violations of a cell; `expected` is the label of the expectation that covers it."""

    status: Status
    signature: str
    expected: str = ""


class CellExecutions(Generic[CaseT, ExecutionT]):
    """The executions of one cell. `tell` is called with what the cell does: judging, shrinking or controlling."""

    def __init__(
        self,
        campaign: Campaign,
        asked: Asked[CaseT],
        runner: Runner[CaseT, ExecutionT],
        *,
        variant: str,
        tell: Callable[[str], None],
    ) -> None:
        self.campaign, self.asked, self.runner, self.variant, self.tell = (
            campaign,
            asked,
            runner,
            variant,
            tell,
        )
        self.number = 0
        """How many executions the cell has caused."""
        self.last: CaseT | None = None
        """The case that was executed last."""
        self.expectations = tuple(
            entry
            for entry in campaign.expectations
            if entry.is_about(
                requirement=asked.row.id,
                schedule=asked.column,
                device=campaign.device,
                torch=torch_version() or "",
            )
        )
        """The entries that are about the cell."""

    def keyed(self, case: CaseT, outcomes: Sequence[Outcome]) -> dict[Key, Outcome]:
        """The first outcome of every kind; a key names the expectation that covers the outcome, if any does."""
        return {self._key(case, one): one for one in reversed(outcomes)}

    def _key(self, case: CaseT, outcome: Outcome) -> Key:
        status, signature = outcome.status, outcome.finding.kind
        covering = (one.label for one in self.expectations if one.shows(status.value, signature, case=case))
        return Key(status, signature, next(covering, ""))

    def shared(
        self, case: CaseT, rows: Sequence[Requirement] = (), *, nth: int | None = 1, hung: bool = False
    ) -> ExecutionT:
        """What the case showed when it was executed for the first, second or third time, by any requirement.

        It was watched as `rows` need it, or as this cell's requirement does. Without `nth`, it is executed anew.
        """
        rows, self.last = rows or (self.asked.row,), case
        name = self.runner.stored_as(case, rows)
        if name is None or nth is None:
            return self.anew(case, rows, hung=hung)
        key = f"{self.variant}-{name}-{nth}{'-waits' if hung else ''}"
        found = self.campaign.store.get(key, self.runner.executions)
        if found is None:
            found = self.anew(case, rows, hung=hung)
            self.campaign.store.put(key, found)
        return found

    def anew(self, case: CaseT, rows: Sequence[Requirement] = (), *, hung: bool = False) -> ExecutionT:
        """Execute a case, whether or not it was executed before."""
        self.number += 1
        self.last = case
        execution = self.runner.execute(case, rows or (self.asked.row,), hung=hung)
        self.campaign.count(case)
        self.tell("judging")
        return execution

    def count(self, case: CaseT, *, times: int = 1) -> None:
        """Count executions of a case that something else made."""
        self.number += times
        self.campaign.count(case, times=times)
