"""Executing stored cases again to see whether a verdict is the same every time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.judging import judge
from pipeconform.campaign.setup import Options, campaign_of
from pipeconform.case.case import Case
from pipeconform.errors import UnknownNameError
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.spec import requirement

__all__ = ["Again", "Question", "rejudge"]


@dataclass(frozen=True, kw_only=True)
class Question:
    """A case to judge again by one requirement, in one environment variant."""

    requirement: str
    variant: str
    case: Case


@dataclass(frozen=True, kw_only=True)
class Again:
    """What each execution showed: statuses and signatures; an empty set is a pass."""

    question: Question
    shown: tuple[frozenset[tuple[str, str]], ...]

    def times(self, status: str, signature: str) -> int:
        """How many executions showed one violation."""
        return sum((status, signature) in one for one in self.shown)


def rejudge(questions: Iterable[Question], *, options: Options, times: int = 1) -> tuple[Again, ...]:
    """Execute each case `times` times on real processes and judge every execution in full.

    `options` name the implementation and the device; ranks are taken from the cases.

    Raises:
        UsageError: the implementation cannot be used, or an environment variant is unknown.
        HarnessError: the harness failed.
    """
    asked = tuple(questions)
    if not asked:
        return ()
    with campaign_of(options) as campaign:
        return tuple(
            Again(question=one, shown=tuple(_shown(one, campaign) for _ in range(times))) for one in asked
        )


def _shown(question: Question, campaign: Campaign) -> frozenset[tuple[str, str]]:
    if question.variant not in campaign.executors:
        raise UnknownNameError("environment variant", question.variant, campaign.executors)
    executor = campaign.executors[question.variant]
    row = requirement(question.requirement)
    execution = executor.execute(question.case, observe=JUDGEMENTS[row.id].observe)
    return frozenset((o.status.value, o.finding.kind) for o in judge(row, execution, executor))
