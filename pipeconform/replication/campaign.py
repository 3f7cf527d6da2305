"""Judging a wrapper by the requirements of its chapter, over warm ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from pipeconform.campaign.cell import CellRun
from pipeconform.campaign.earlier import Earlier
from pipeconform.campaign.kept import KeptCases
from pipeconform.campaign.pairs import Point
from pipeconform.case.any_case import WRAPPER_COLUMN
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.errors import BadAdapterError, HarnessError, NothingJudgedError
from pipeconform.gate.expectations import Expectation
from pipeconform.judge.finding import Finding
from pipeconform.judge.gauge import Gauge
from pipeconform.judge.outcome import Outcome, Status, judge_verdicts
from pipeconform.replication.cell import WrapperCell
from pipeconform.replication.drawing import Listed
from pipeconform.replication.evidence import came_through, distinct, evidence_of
from pipeconform.replication.job import Job
from pipeconform.replication.judgement import why_not_judged
from pipeconform.replication.observation import Expected, Question, Shown
from pipeconform.replication.registry import WRAPPER_JUDGEMENTS
from pipeconform.report.progress import Progress
from pipeconform.report.result import Cell
from pipeconform.run.protocols import RankPools
from pipeconform.run.source import Source
from pipeconform.run.verdict import Raised, Returned, VerdictVector
from pipeconform.spec import Profile, Requirement, profile
from pipeconform.wrapper import WrapperDescription

__all__ = ["PRELOAD", "WrapperCampaign", "describe"]

PRELOAD = ("torch", "torch.distributed", "pipeconform.replication.worker")
_RANK_TASK = "pipeconform.replication.worker:execute"
_DESCRIBE_TASK = "pipeconform.replication.worker:describe"
_ORACLE_TASK = "pipeconform.replication.worker:answer"


def describe(pools: RankPools, reference: str) -> WrapperDescription:
    """Let a rank process import the implementation and describe it.

    Raises:
        BadAdapterError: with the words of the process that failed.
        HarnessError: it died or hung.
    """
    vector = pools.oracle.run(_DESCRIBE_TASK, reference.encode(), time_limit=120.0)
    verdict = vector[0]
    if isinstance(verdict, Raised):
        raise BadAdapterError(verdict.message)
    if not isinstance(verdict, Returned):
        raise HarnessError(f"describing {reference!r} failed:\n{vector.describe()}")
    try:
        return msgspec.msgpack.decode(verdict.value, type=WrapperDescription)
    except msgspec.ValidationError as error:
        raise BadAdapterError(f"--impl {reference!r}: describe() returned a wrong value: {error}") from error


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
        if not case.loaded_by:
            return self._run(case)
        first = self._run(case.saving)
        if not first.ok or not came_through(_shown(first)):
            return first
        earlier = _shown(first)
        second = self._run(case.loading, checkpoint=earlier[0].checkpoint)
        return _with_earlier(second, earlier) if second.ok else second

    def _run(self, case: WrapperCase, *, checkpoint: bytes = b"") -> VerdictVector:
        pool = self.pools.of_size(case.ranks)
        job = Job(implementation=self.reference, case=case, checkpoint=checkpoint)
        vector = pool.run(_RANK_TASK, msgspec.msgpack.encode(job), time_limit=self.time_limit)
        if vector.ok and any(one.failed is not None for one in _shown(vector)):
            pool.restart()  # what a failed step left under way must not meet the next case
        return vector

    def outcomes(
        self, requirement: str, case: WrapperCase, vector: VerdictVector, *, gauge: Gauge | None = None
    ) -> tuple[Outcome, ...]:
        """What a requirement has to say about an execution; empty when it is met. `gauge` counts what is compared.

        Raises:
            HarnessError: the oracle failed.
        """
        ended = judge_verdicts(vector)
        if ended is not None:
            return (replace(ended, verdicts=vector.describe()),)
        claims = self.description.claims
        evidence = evidence_of(case, _shown(vector), claims=claims, ask=self._ask, gauge=gauge)
        table = vector.describe()
        found = list(distinct(WRAPPER_JUDGEMENTS[requirement].judge(evidence)))
        return tuple(Outcome(_status_of(one), one, verdicts=table) for one in found)

    def _ask(self, question: Question) -> Expected:
        vector = self.pools.oracle.run(
            _ORACLE_TASK, msgspec.msgpack.encode(question), time_limit=self.time_limit
        )
        if not vector.ok:
            raise HarnessError(f"the oracle failed on case {question.case.digest}:\n{vector.explain()}")
        return msgspec.msgpack.decode(vector.values[0], type=Expected)


def _shown(vector: VerdictVector) -> tuple[Shown, ...]:
    return tuple(msgspec.msgpack.decode(value, type=Shown) for value in vector.values)


def _with_earlier(vector: VerdictVector, earlier: tuple[Shown, ...]) -> VerdictVector:
    """The verdicts, the first of them with what the world before showed."""
    first, *others = vector.verdicts
    assert isinstance(first, Returned)
    shown = msgspec.structs.replace(_shown(vector)[0], earlier=earlier)
    return VerdictVector((msgspec.structs.replace(first, value=msgspec.msgpack.encode(shown)), *others))


def _status_of(finding: Finding) -> Status:
    return Status.ERROR if finding.kind.startswith(("raised ", "claimed, but")) else Status.FAILED
