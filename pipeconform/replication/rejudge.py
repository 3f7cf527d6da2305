"""Executing stored cases again to see whether a verdict is the same every time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeconform.campaign.options import Options
from pipeconform.case.any_case import AnyCase
from pipeconform.judge.outcome import Outcome
from pipeconform.replication.again import judge_again
from pipeconform.replication.either import AnyCampaign, any_campaign_of, executor_of
from pipeconform.spec.wrappers import any_requirement

__all__ = ["Again", "Question", "rejudge"]


@dataclass(frozen=True, kw_only=True)
class Question:
    """A case to judge again by one requirement, in one environment variant."""

    requirement: str
    variant: str
    case: AnyCase
    hung: bool = False
    """Whether it is known to hang: then the ranks record who waits for whom."""


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
    with any_campaign_of(options) as campaign:
        return tuple(
            Again(question=one, shown=tuple(_shown(one, campaign) for _ in range(times))) for one in asked
        )


def _shown(question: Question, campaign: AnyCampaign) -> frozenset[tuple[str, str]]:
    return frozenset((o.status.value, o.finding.kind) for o in _judged(question, campaign))


def _judged(question: Question, campaign: AnyCampaign) -> tuple[Outcome, ...]:
    row = any_requirement(question.requirement)
    executor = executor_of(campaign, question.variant)
    return judge_again(question.case, (row,), executor, hung=question.hung)[row.id]
