"""Executing a wrapper's case on warm ranks and judging it, apart from the campaign that chooses cases."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from pipeconform.campaign.blame import blamed
from pipeconform.campaign.executor import require_alive
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.errors import BadAdapterError, ContractError, HarnessError
from pipeconform.execute.implementation import module_of
from pipeconform.judge.finding import Finding
from pipeconform.judge.gauge import Gauge
from pipeconform.judge.outcome import Outcome, Status, judge_verdicts
from pipeconform.ranks.answered import ask_implementation, read_answers
from pipeconform.ranks.protocols import RankPools
from pipeconform.ranks.verdict import Raised, Returned, VerdictVector
from pipeconform.replication.evidence import came_through, distinct, evidence_of
from pipeconform.replication.job import Job
from pipeconform.replication.observation import Expected, Question, Shown
from pipeconform.replication.registry import WRAPPER_JUDGEMENTS
from pipeconform.wrapper import WrapperDescription

__all__ = ["PRELOAD", "WrapperExecutor", "describe"]

PRELOAD = ("torch", "torch.distributed", "pipeconform.replication.worker")
_RANK_TASK = "pipeconform.replication.worker:execute"
_DESCRIBE_TASK = "pipeconform.replication.worker:describe"
_ORACLE_TASK = "pipeconform.replication.worker:answer"


def describe(pools: RankPools, reference: str) -> WrapperDescription:
    """Let a rank process import the implementation and describe it.

    Raises:
        BadAdapterError: with the words of the process that failed, or what became of it if it ended or hung.
        ContractError: a method of it takes other arguments than it is called with.
        HarnessError: the host of the process was lost.
    """
    vector = ask_implementation(pools, _DESCRIBE_TASK, reference, answer=WrapperDescription, time_limit=120.0)
    verdict = vector[0]
    if isinstance(verdict, Raised):
        broken = verdict.type.rpartition(".")[2] == "ContractError"
        raise (ContractError if broken else BadAdapterError)(verdict.message)
    require_alive(vector, reference)
    found: WrapperDescription = vector.values[0]
    return found


@dataclass(frozen=True, kw_only=True)
class WrapperExecutor:
    """Runs and judges cases of one wrapper. `time_limit` is in seconds for one case."""

    implementation: str
    """In full, as `pipeconform.execute.implementation.resolve` gives it."""
    description: WrapperDescription
    pools: RankPools
    time_limit: float = 60.0

    def execute(self, case: WrapperCase) -> VerdictVector:
        """What the ranks say; of two worlds the second, with what the first showed, or the one that failed.

        Raises:
            PoolError: rank processes cannot be formed.
        """
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
        job = Job(implementation=self.implementation, case=case, checkpoint=checkpoint)
        returned = pool.run(_RANK_TASK, msgspec.msgpack.encode(job), time_limit=self.time_limit)
        vector = read_answers(returned, Shown)
        if returned.ok and (not vector.ok or any(one.failed is not None for one in _shown(vector))):
            pool.restart()  # what a failed step left under way must not meet the next case
        return vector

    def outcomes(
        self, requirement: str, case: WrapperCase, vector: VerdictVector, *, gauge: Gauge | None = None
    ) -> tuple[Outcome, ...]:
        """What a requirement has to say about an execution; empty when it is met. `gauge` counts what is compared.

        Raises:
            ContractError: the adapter itself raised, or a device or backend is not there.
            HarnessError: the oracle failed.
        """
        ended = judge_verdicts(vector)
        if ended is not None:
            return (replace(ended, verdicts=vector.describe()),)
        claims = self.description.claims
        evidence = evidence_of(case, _shown(vector), claims=claims, ask=self._ask, gauge=gauge)
        table = vector.describe()
        found = list(distinct(WRAPPER_JUDGEMENTS[requirement].judge(evidence)))
        outcomes = tuple(Outcome(_status_of(one), one, verdicts=table) for one in found)
        if any(one.status is Status.ERROR for one in outcomes):
            self._require_wrapper(_shown(vector))
        return outcomes

    def _require_wrapper(self, shown: tuple[Shown, ...]) -> None:
        """Judge no exception of the adapter's own making, and none of this machine's.

        Raises:
            ContractError: a rank raised such a one.
        """
        where = module_of(self.implementation.rpartition(":")[0])
        for one in shown:
            raised = None if one.failed is None else one.failed.raised
            if raised is not None and (reason := blamed(raised, adapter=where)):
                raise ContractError(
                    f"the adapter, or what it needs, does not work (rank {one.rank}): {reason}"
                )

    def _ask(self, question: Question) -> Expected:
        vector = self.pools.oracle.run(
            _ORACLE_TASK, msgspec.msgpack.encode(question), time_limit=self.time_limit
        )
        if not vector.ok:
            raise HarnessError(f"the oracle failed on case {question.case.digest}:\n{vector.explain()}")
        return msgspec.msgpack.decode(vector.values[0], type=Expected)


def _shown(vector: VerdictVector) -> tuple[Shown, ...]:
    return vector.values


def _with_earlier(vector: VerdictVector, earlier: tuple[Shown, ...]) -> VerdictVector:
    """The verdicts, the first of them with what the world before showed."""
    first, *others = vector.verdicts
    assert isinstance(first, Returned)
    shown = msgspec.structs.replace(_shown(vector)[0], earlier=earlier)
    return VerdictVector((msgspec.structs.replace(first, value=shown), *others))


def _status_of(finding: Finding) -> Status:
    return Status.ERROR if finding.kind.startswith(("raised ", "claimed, but")) else Status.FAILED
