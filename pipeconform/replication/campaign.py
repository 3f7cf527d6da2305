"""Judging a wrapper by the requirements of its chapter, over warm ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from pipeconform.campaign.cell import CellRun
from pipeconform.campaign.earlier import Earlier
from pipeconform.campaign.kept import KeptCases
from pipeconform.campaign.pairs import Point
from pipeconform.case.any_case import WRAPPER_COLUMN
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.errors import NothingJudgedError
from pipeconform.execute.source import Source
from pipeconform.gate.expectations import Expectation
from pipeconform.judge.gauge import Gauge
from pipeconform.judge.outcome import Outcome
from pipeconform.ranks.protocols import RankPools
from pipeconform.ranks.verdict import VerdictVector
from pipeconform.replication.cell import WrapperCell
from pipeconform.replication.drawing import Listed
from pipeconform.replication.executor import PRELOAD, WrapperExecutor, describe
from pipeconform.replication.judgement import why_not_judged
from pipeconform.replication.registry import WRAPPER_JUDGEMENTS
from pipeconform.report.progress import Progress
from pipeconform.report.result import Cell
from pipeconform.spec import Profile, Requirement, profile
from pipeconform.wrapper import WrapperDescription

__all__ = ["PRELOAD", "WrapperCampaign", "describe"]


@dataclass(kw_only=True)
class WrapperCampaign:
    """One wrapper, and the processes to judge it in. `time_limit` is in seconds for one case."""

    implementation: str
    """What the user wrote; `reference` is its full form."""
    reference: str
    description: WrapperDescription
    pools: RankPools
    seed: int = 0
    time_limit: float = 60.0
    profile: Profile = field(default_factory=lambda: profile("smoke"))
    ranks: tuple[int, int] = (1, 4)
    """The fewest and the most replicas of a case."""
    examples: int | None = None
    """So many of a requirement's listed cases; all for None."""
    expectations: tuple[Expectation, ...] = ()
    device: str = "cpu"
    kept: KeptCases | None = None
    earlier: Earlier = field(default_factory=Earlier)
    listener: Callable[[Progress], None] | None = None
    source: Source = field(default_factory=Source)
    executed: dict[str, int] = field(default_factory=dict)
    """Executions by case digest."""
    num_ranks: dict[str, int] = field(default_factory=dict)
    points: set[Point] = field(default_factory=set)
    """Combinations of properties are not counted of wrappers."""

    @property
    def executor(self) -> WrapperExecutor:
        """What executes and judges cases."""
        return WrapperExecutor(
            implementation=self.reference,
            description=self.description,
            pools=self.pools,
            time_limit=self.time_limit,
        )

    def judge_cell(
        self, requirement: Requirement, schedule: str = WRAPPER_COLUMN, variant: str = "default"
    ) -> Cell:
        """Judge one requirement.

        Raises:
            HarnessError: the harness failed; no verdict can be drawn.
        """
        judgement, claims = WRAPPER_JUDGEMENTS[requirement.id], self.description.claims
        if reason := why_not_judged(judgement, self.description):
            return self._unjudged(requirement, "not_claimed", reason)
        listed = judgement.drawn(claims, seed=self.seed, whole_grid=self.profile.whole_grids)
        if not listed:
            raise NothingJudgedError(f"{requirement.id} is claimed, but no case lies inside the claims")
        inside = tuple(filter(self.allows, listed))[: self.examples]
        if not inside:
            fewest = min(case.ranks for case in listed)
            reason = f"{requirement.id} needs {fewest} or more replicas; --ranks allows {self.ranks[1]}"
            return self._unjudged(requirement, "skipped", reason)
        drawn = Listed(requirement=requirement.id, cases=inside, seed=self.seed)
        return CellRun(self, WrapperCell(campaign=self, requirement=requirement.id, listed=drawn)).judge()

    def _unjudged(
        self, requirement: Requirement, status: Literal["not_claimed", "skipped"], reason: str
    ) -> Cell:
        return Cell(requirement=requirement.id, schedule=WRAPPER_COLUMN, status=status, reason=reason)

    def allows(self, case: WrapperCase) -> bool:
        """Whether its number of replicas is one that the run and the claims allow."""
        most = min(self.ranks[1], self.description.claims.max_ranks)
        return self.ranks[0] <= min(case.world_sizes) and max(case.world_sizes) <= most

    def judge_case(self, requirement: str, case: WrapperCase) -> tuple[Outcome, ...]:
        """Execute a case and judge it by one requirement; empty when that is met."""
        return self.outcomes(requirement, case, self.execute(case))

    def execute(self, case: WrapperCase) -> VerdictVector:
        """What the ranks say, and count; of two worlds the second, with what the first showed, or the one that failed.

        Raises:
            PoolError: rank processes cannot be formed.
        """
        digest = case.digest
        self.executed[digest] = self.executed.get(digest, 0) + 1
        self.num_ranks[digest] = case.ranks
        return self.executor.execute(case)

    def outcomes(
        self, requirement: str, case: WrapperCase, vector: VerdictVector, *, gauge: Gauge | None = None
    ) -> tuple[Outcome, ...]:
        """What a requirement has to say about an execution; empty when it is met. `gauge` counts what is compared.

        Raises:
            HarnessError: the oracle failed.
        """
        return self.executor.outcomes(requirement, case, vector, gauge=gauge)
