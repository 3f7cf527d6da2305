"""The runner for data-parallel wrappers: executes and judges cases in the processes of one environment variant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from pipeconform.bounds.gauge import Gauge
from pipeconform.campaign.blame import blamed
from pipeconform.campaign.options import TIME_LIMIT
from pipeconform.campaign.pace import Pace
from pipeconform.campaign.runner import Judged
from pipeconform.case.any_case import AnyCase
from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.errors import ContractError, HarnessError
from pipeconform.execute.implementation import module_of
from pipeconform.judge.finding import Finding
from pipeconform.judge.outcome import Outcome, Status, judge_verdicts
from pipeconform.ranks.answered import read_answers
from pipeconform.ranks.protocols import RankPools
from pipeconform.ranks.verdict import Returned, VerdictVector
from pipeconform.spec import Requirement
from pipeconform.spec.wrappers import Kind
from pipeconform.wrapper import WrapperDescription
from pipeconform.wrappers.evidence import came_through, distinct, evidence_of
from pipeconform.wrappers.job import Job
from pipeconform.wrappers.observation import Expected, Question, Shown
from pipeconform.wrappers.registry import WRAPPER_JUDGEMENTS

__all__ = ["WrapperRunner"]

_RANK_TASK = "pipeconform.wrappers.worker:execute"
_ORACLE_TASK = "pipeconform.wrappers.worker:answer"


@dataclass(frozen=True, kw_only=True)
class WrapperRunner:
    """Runs wrapper cases in the processes of `pools`; `time_limit` is in seconds for one case."""

    implementation: str
    """The full reference, as `pipeconform.execute.implementation.resolve` returns it."""
    description: WrapperDescription
    pools: RankPools
    time_limit: float = TIME_LIMIT
    coverage: str = ""
    """As in `Executor`."""
    pace: Pace = field(default_factory=Pace, repr=False, compare=False)
    kind: Kind = "wrapper"
    promises: bool = False
    executions: type[VerdictVector] = VerdictVector

    @property
    def title(self) -> str:
        """The implementation's name and version."""
        return f"{self.description.name} {self.description.version}"

    def own(self, case: AnyCase) -> WrapperCase | None:
        """The case if it is a wrapper's, else None."""
        return case if isinstance(case, WrapperCase) else None

    def apart(self, rows: Iterable[Requirement]) -> tuple[tuple[Requirement, ...], ...]:
        """The requirements in one group: what they observe is the same."""
        return (tuple(rows),)

    def execute(
        self, case: WrapperCase, rows: Iterable[Requirement] = (), *, hung: bool = False
    ) -> VerdictVector:
        """Run the case; if it has two worlds, return the second one's verdicts, or the first one's if it failed.

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
        job = Job(
            implementation=self.implementation, case=case, checkpoint=checkpoint, coverage=self.coverage
        )
        limit = self.pace.limit(self.time_limit, schedule="", compiles=case.compiled)
        returned = pool.run(_RANK_TASK, msgspec.msgpack.encode(job), time_limit=limit)
        self.pace.note(returned, schedule="", time_limit=limit)
        vector = read_answers(returned, Shown)
        if returned.ok and (not vector.ok or any(one.failed is not None for one in _shown(vector))):
            pool.restart()  # messages that a failed step left in transit would reach the next case
        return vector

    def stored_as(self, case: WrapperCase, rows: Iterable[Requirement]) -> None:
        """None: every case has values of its own, so no other requirement shares it."""

    def judged(
        self,
        row: Requirement,
        case: WrapperCase,
        execution: VerdictVector,
        *,
        thorough: bool = True,
        anew: bool = True,
    ) -> Judged:
        """Judge an execution by one requirement; bounds are computed where bits differ.

        Raises:
            ContractError: the adapter itself raised, or a device or backend is missing.
            HarnessError: the oracle failed.
        """
        table, ended = execution.describe(), judge_verdicts(execution)
        if ended is not None:
            return Judged((replace(ended, verdicts=table),))
        claims, gauge = self.description.claims, Gauge()
        evidence = evidence_of(case, _shown(execution), claims=claims, ask=self._ask, gauge=gauge)
        found = list(distinct(WRAPPER_JUDGEMENTS[row.id].judge(evidence)))
        outcomes = tuple(Outcome(_status_of(one), one, verdicts=table) for one in found)
        if any(one.status is Status.ERROR for one in outcomes):
            self._require_wrapper(_shown(execution))
        return Judged(outcomes, worst_ratio=gauge.worst, compared=gauge.compared)

    def repetitions(self, row: Requirement, execution: VerdictVector, *, anew: bool) -> int:
        """Return 0, because no wrapper requirement executes a case again."""
        return 0

    def localised(self, case: WrapperCase, outcomes: Sequence[Outcome]) -> None:
        """Return None, because a replica is not divided into stages."""

    def can_localise(self, outcome: Outcome) -> bool:
        """False: a replica is not divided into stages."""
        return False

    def _require_wrapper(self, shown: tuple[Shown, ...]) -> None:
        """Refuse to judge an exception that the adapter or this machine caused.

        Raises:
            ContractError: a rank raised such an exception.
        """
        where = module_of(self.implementation.rpartition(":")[0])
        for one in shown:
            raised = None if one.failed is None else one.failed.raised
            if raised is not None and (
                reason := blamed(raised, adapter=where, engine=self.description.packages)
            ):
                raise ContractError(
                    f"the adapter, or what it needs, does not work (rank {one.rank}): {reason}"
                )

    def _ask(self, question: Question) -> Expected:
        vector = self.pools.oracle.run(
            _ORACLE_TASK, msgspec.msgpack.encode(question), time_limit=max(self.time_limit, TIME_LIMIT)
        )
        if not vector.ok:
            raise HarnessError(f"the oracle failed on case {question.case.digest}:\n{vector.explain()}")
        return msgspec.msgpack.decode(vector.values[0], type=Expected)


def _shown(vector: VerdictVector) -> tuple[Shown, ...]:
    return vector.values


def _with_earlier(vector: VerdictVector, earlier: tuple[Shown, ...]) -> VerdictVector:
    """The verdicts, with what the earlier world showed added to the first."""
    first, *others = vector.verdicts
    assert isinstance(first, Returned)
    shown = msgspec.structs.replace(_shown(vector)[0], earlier=earlier)
    return VerdictVector((msgspec.structs.replace(first, value=shown), *others))


def _status_of(finding: Finding) -> Status:
    return Status.ERROR if finding.kind.startswith(("raised ", "claimed, but")) else Status.FAILED
