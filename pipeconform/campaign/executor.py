"""Executes one pipeline case on the ranks and in the oracle at the same time, and collects their answers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from pipeconform.adapter import Capabilities, Description
from pipeconform.bounds.gauge import Gauge
from pipeconform.campaign.known_answers import KnownAnswers
from pipeconform.campaign.options import TIME_LIMIT
from pipeconform.campaign.pace import Pace
from pipeconform.case.blocks import Compiled
from pipeconform.case.case import Case
from pipeconform.errors import HarnessError
from pipeconform.execute.described import encoded
from pipeconform.execute.job import Job
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.outcome import Outcome, judge_refusal, judge_verdicts
from pipeconform.observe.observation import Failed, Observation, Reference, Watched
from pipeconform.oracle.full_model import Bounds, Question
from pipeconform.oracle.masks import Masks, masks_of
from pipeconform.ranks.answered import read_answers
from pipeconform.ranks.protocols import RankPools, Task
from pipeconform.ranks.verdict import Returned, VerdictVector

__all__ = ["Execution", "Executor"]

RANK_TASK = "pipeconform.execute.worker:execute"
ORACLE_TASK = "pipeconform.oracle.full_model:answer"


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """The results of executing a case once."""

    case: Case
    verdicts: VerdictVector
    """One verdict per rank; return values are in `shown`."""
    shown: tuple[Observation, ...] = ()
    """One observation per rank; empty unless every rank returned."""
    expected: Reference | None = None
    failed: dict[int, Failed] = {}
    """How each failed rank of a mistaken case ended, by rank; in other cases the rank's verdict says so."""
    seconds: float = 0.0

    def outcome(self) -> Outcome | None:
        """The outcome if a rank did not return or refused the case; None otherwise."""
        return judge_verdicts(self.verdicts) or judge_refusal(self.shown)


@dataclass(frozen=True, kw_only=True)
class Executor:
    """Runs cases of one implementation under one environment variant.

    `time_limit` is the hard limit for one case, in seconds; hangs are usually detected long before it.
    """

    implementation: str
    description: Description
    pools: RankPools
    time_limit: float = TIME_LIMIT
    coverage: str = ""
    """The folder in which ranks record what they execute of the implementation; empty if they do not."""
    known_answers: KnownAnswers = field(default_factory=KnownAnswers, repr=False, compare=False)
    mistaken: set[int] = field(default_factory=set, repr=False, compare=False)
    """The world sizes whose processes have lived through a mistake."""
    pace: Pace = field(default_factory=Pace, repr=False, compare=False)

    @property
    def capabilities(self) -> Capabilities:
        """What the implementation claims."""
        return self.description.capabilities

    @functools.cached_property
    def _described(self) -> bytes:
        return encoded(self.description)

    def claimed_for(self, case: Case) -> Capabilities:
        """What the implementation claims under the case's schedule."""
        return self.capabilities.under(self.capabilities.schedule(case.schedule))

    def execute(self, case: Case, *, observe: Iterable[Watched] = ()) -> Execution:
        """Run `case` in warm processes; `observe` names what the ranks record besides values.

        Raises:
            PoolError: rank processes cannot be formed.
            HarnessError: the oracle failed.
        """
        begun = time.monotonic()
        question = None if case.draws_masks else self._question(case)
        # the oracle computes beside the ranks, unless it has answered before or needs their masks
        oracle = None if question is None or self.known_answers.known(question) else self._asked(question)
        try:
            vector = self._run_ranks(case, observe)
        except BaseException:
            if oracle is not None:
                oracle.cancel()
            raise
        shown = _observations(vector)
        if any(one.lasting for one in shown):
            self.restart(case)  # messages that the mistake left in transit would reach the next case
        if question is None:
            question = self._question(case, masks=masks_of(case, shown))

        def ask() -> bytes:
            return self._answer(question, case, pending=oracle)

        expected = _decoded(self.known_answers.answer(question, ask=ask))
        return Execution(
            case=case,
            verdicts=_without_values(vector),
            shown=shown,
            expected=expected,
            failed=_failed(vector) if case.is_mistaken else {},
            seconds=time.monotonic() - begun,
        )

    def repeat(self, case: Case) -> Execution:
        """Run `case` without the oracle, for comparison with another execution of it.

        Raises:
            PoolError: rank processes cannot be formed.
        """
        vector = self._run_ranks(case, ())
        return Execution(case=case, verdicts=_without_values(vector), shown=_observations(vector))

    def _run_ranks(self, case: Case, observe: Iterable[Watched]) -> VerdictVector:
        job = Job(
            implementation=self.implementation,
            described=self._described,
            case=case,
            observe=tuple(sorted(observe)),
            coverage=self.coverage,
        )
        size = self._world_size(case)
        pool = self.pools.of_size(size)
        # What an error leaves behind in a process must not accuse the cases after it (ERR-11 asks about it). Another
        # mistaken case may follow where groups end cleanly after errors, as gloo's do; other backends' are aborted.
        spoiled = size in self.mistaken and not (case.is_mistaken and self.pools.devices.ends_after_errors)
        if self.capabilities.fresh_process_per_build or spoiled:
            pool.restart()
            self.mistaken.discard(size)
        if case.is_mistaken:
            self.mistaken.add(size)

        limit = self.pace.limit(self.time_limit, schedule=case.schedule, compiles=case.has(Compiled))

        def run() -> tuple[VerdictVector, VerdictVector]:
            returned = pool.run(
                RANK_TASK,
                msgspec.msgpack.encode(job),
                time_limit=limit,
                failure_expected=case.is_mistaken,
            )
            self.pace.note(returned, schedule=case.schedule, time_limit=limit)
            return returned, read_answers(returned, Observation)

        returned, vector = run()
        # an error that another case left behind is ERR-11's business
        if any(one.earlier for one in _failed(vector).values()):
            pool.restart()
            returned, vector = run()
        if returned.ok and not vector.ok:
            pool.restart()  # a process that answers with anything else is not used again
        return vector

    def restart(self, case: Case) -> None:
        """Replace the processes that would run `case` by new ones."""
        self.pools.of_size(self._world_size(case)).restart()
        self.mistaken.discard(self._world_size(case))

    def evidence(
        self,
        execution: Execution,
        *,
        thorough: bool = True,
        copied: bool = False,
        flow: bool = False,
        gauge: Gauge | None = None,
    ) -> Evidence:
        """The evidence of an execution in which every rank returned.

        With `copied`, the reference computes on microbatches that were copied from their batch; with `flow`, it
        includes the tensors that pass between stages.
        """
        expected = execution.expected
        if copied or flow:
            masks = masks_of(execution.case, execution.shown)
            question = self._question(execution.case, masks=masks, copied=copied, flow=flow)
            expected = _decoded(self._bounded_answer(question, execution.case))
        assert expected is not None
        return Evidence(
            case=execution.case,
            capabilities=self.claimed_for(execution.case),
            shown=execution.shown,
            expected=expected,
            bounded=self._bounded(execution, flow=flow),
            thorough=thorough,
            gauge=gauge or Gauge(),
        )

    def as_mistaken(self, execution: Execution) -> Evidence:
        """The evidence of a mistaken case that no rank refused, to compare with the mistaken model itself."""
        case = execution.case

        @functools.cache
        def bounded(bounds: Bounds) -> Reference:
            question = self._question(case, bounds=bounds, mistaken=True)
            return _decoded(self._bounded_answer(question, case))

        return Evidence(
            case=case,
            capabilities=self.claimed_for(case),
            shown=execution.shown,
            expected=bounded("none"),
            bounded=bounded,
        )

    def _bounded(self, execution: Execution, *, flow: bool) -> Callable[[Bounds], Reference]:
        @functools.cache
        def bounded(bounds: Bounds) -> Reference:
            masks = masks_of(execution.case, execution.shown)
            # what passes between stages costs little beside the analysis, which localising would repeat for it
            passing = flow or bounds == "running"
            question = self._question(execution.case, masks=masks, bounds=bounds, flow=passing)
            return _decoded(self._bounded_answer(question, execution.case))

        return bounded

    def _bounded_answer(self, question: bytes, case: Case) -> bytes:
        def ask() -> bytes:
            return self._answer(question, case, patience=10)

        return self.known_answers.answer(question, ask=ask)

    def _answer(
        self, question: bytes, case: Case, *, pending: Task | None = None, patience: float = 1
    ) -> bytes:
        """The oracle's answer, which is `pending` if it was asked before; it is asked once more if it fails.

        Where ranks of a hang are killed, a device's service may break for all that it serves: the oracle, too.
        """
        answered = (pending or self._asked(question, patience=patience)).wait()
        if not answered.ok:
            answered = self._asked(question, patience=patience).wait()
        return _bytes_of(answered, case)

    def _asked(self, question: bytes, *, patience: float = 1) -> Task:
        return self.pools.oracle.start(ORACLE_TASK, question, time_limit=patience * self._oracle_limit)

    @property
    def _oracle_limit(self) -> float:
        """The oracle's limit is never shorter than `TIME_LIMIT`: it computes where no hang is to be found."""
        return max(self.time_limit, TIME_LIMIT)

    def _world_size(self, case: Case) -> int:
        return 1 if self.capabilities.world == "single_process" else case.world.size

    def _question(
        self,
        case: Case,
        *,
        masks: Masks = (),
        bounds: Bounds = "none",
        copied: bool = False,
        mistaken: bool = False,
        flow: bool = False,
    ) -> bytes:
        """The oracle's question about the case; without its mistakes, unless `mistaken`, and without its schedule."""
        scale, case = self.capabilities.scale, case if mistaken else case.without_mistakes
        return msgspec.msgpack.encode(
            Question(
                case=msgspec.structs.replace(case, schedule=""),
                scale_at=scale.at,
                input_gradients_scaled=scale.input_gradients_scaled,
                loss_over=self.capabilities.loss_over,
                copied=copied,
                masks=masks,
                bounds=bounds,
                flow=flow,
            )
        )


def _observations(vector: VerdictVector) -> tuple[Observation, ...]:
    return vector.values if vector.ok else ()


def _failed(vector: VerdictVector) -> dict[int, Failed]:
    """How each failed rank ended; a rank that did not answer is missing, and its verdict says why."""
    shown = {rank: one.value for rank, one in enumerate(vector) if isinstance(one, Returned)}
    return {rank: one.failed for rank, one in shown.items() if one.failed is not None}


def _without_values(vector: VerdictVector) -> VerdictVector:
    verdicts = tuple(Returned(None, one.after) if isinstance(one, Returned) else one for one in vector)
    return VerdictVector(verdicts)


def _bytes_of(vector: VerdictVector, case: Case) -> bytes:
    if not vector.ok:
        raise HarnessError(f"the oracle failed on case {case.digest}:\n{vector.describe()}\n{vector[0]}")
    answer: bytes = vector.values[0]
    return answer


def _decoded(answer: bytes) -> Reference:
    return msgspec.msgpack.decode(answer, type=Reference)
