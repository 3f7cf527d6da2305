"""Executes stored cases again to see whether a verdict is the same every time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeconform.campaign.again import judge_again
from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import campaign_of
from pipeconform.case.any_case import AnyCase
from pipeconform.spec.wrappers import any_requirement

__all__ = ["Again", "Question", "rejudge"]


@dataclass(frozen=True, kw_only=True)
class Question:
    """A case to judge again by one requirement, under one environment variant."""

    requirement: str
    variant: str
    case: AnyCase
    hung: bool = False
    """Whether it is known to hang; the ranks then record which rank waits for which."""


@dataclass(frozen=True, kw_only=True)
class Again:
    """The statuses and signatures that each execution showed; an empty set is a pass."""

    question: Question
    shown: tuple[frozenset[tuple[str, str]], ...]

    def times(self, status: str, signature: str) -> int:
        """How many executions showed one violation."""
        return sum((status, signature) in one for one in self.shown)


def rejudge(questions: Iterable[Question], *, options: Options, times: int = 1) -> tuple[Again, ...]:
    """Execute each case `times` times on real processes and judge every execution in full.

    `options` name the implementation and the device; the cases determine the ranks.

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
    row = any_requirement(question.requirement)
    runner = campaign.runner(question.variant)
    outcomes = judge_again(question.case, (row,), runner, hung=question.hung)[row.id]
    return frozenset((one.status.value, one.finding.kind) for one in outcomes)
