"""Faults in agreeing on a plan: mistakes are not found, found by one rank only or too late, or badly reported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from pipeconform.adapter import Batch, Mode, Plan, StepResult

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..agreement import Agreement, Kinds, Told, problems_of
from ..batches import BatchCheck
from ..runtime import Work
from ..tables import OFFERS
from .fault import breaks

# ------------------------------------------------------------------------------------- neighbours


class _Trusting(Agreement):
    def disagreements(self, declared: Mapping[int, tuple[Kinds, Kinds]]) -> Iterator[str]:
        yield from ()


@breaks(
    "ERR-8", tells="another (shape|dtype) for the output of stage .*; no rank raised; promised: ValueError"
)
class NeighboursBelieved(ReferenceAdapter):
    """Declared boundaries of adjacent stages are not compared."""

    agreement = _Trusting


@breaks("ERR-8", tells="another dtype for the output of stage .*; no rank raised")
class DeclaredDtypesNotCompared(Agreement):
    """Declared shapes are compared, dtypes are not."""

    def disagreements(self, declared: Mapping[int, tuple[Kinds, Kinds]]) -> Iterator[str]:
        yield from super().disagreements({s: (_shapes(i), _shapes(o)) for s, (i, o) in declared.items()})


def _shapes(kinds: Kinds) -> Kinds:
    return tuple(kind[kind.index("[") :] for kind in kinds)


@breaks("ERR-8", tells=r"it does not name stage \d")
class OneNeighbourNamed(Agreement):
    """The error about two stages that disagree names only one of them."""

    def disagreements(self, declared: Mapping[int, tuple[Kinds, Kinds]]) -> Iterator[str]:
        for text in super().disagreements(declared):
            yield text.rpartition("but ")[2]


class _ComparedInFirstStep(ReferencePipeline):
    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if self.plan.ranks.pipeline_rank is not None:
            Agreement().check(self.plan)
        return super().run(mode, batch)


@breaks("ERR-8", tells="it does not come while the pipeline is built, but in step 0")
class NeighboursComparedLate(ReferenceAdapter):
    """Declared boundaries of adjacent stages are compared only in the first step."""

    agreement = _Trusting
    pipeline = _ComparedInFirstStep


# ------------------------------------------------------------------------------------------ plans


@breaks(
    "ERR-9",
    status="hung",
    tells=r"waits forever, when the plan of pipeline rank \d names a schedule .* and rank \d raised",
)
class PlanCheckedAlone(Agreement):
    """A rank that finds its plan wrong raises alone and tells no other rank."""

    def mine(self, plan: Plan) -> Told:
        for problem in problems_of(plan):
            raise ValueError(f"pipeline rank {plan.ranks.pipeline_rank}: {problem}")
        return super().mine(plan)


class _Partial(Agreement):
    unseen = ""

    def problems(self, everyone: Sequence[Told], *, num_ranks: int) -> Iterator[str]:
        for problem in super().problems(everyone, num_ranks=num_ranks):
            if self.unseen not in problem:
                yield problem


@breaks("ERR-9", status="hung", tells=r"waits forever, when the plan of pipeline rank \d has \d microbatches")
class MicrobatchNumbersNotCompared(_Partial):
    """Ranks run with different numbers of microbatches."""

    unseen = " microbatches"


@breaks("ERR-9", tells="does not describe the boundaries.*; no rank raised; promised: ValueError")
class PartlyDeclaredAccepted(_Partial):
    """Boundaries may be declared on some ranks only."""

    unseen = "some ranks only"


@breaks("ERR-9", tells="raised ValueError: invalid configuration; it does not name", also=("ERR-8",))
class PlanErrorsWordless(Agreement):
    """The error about a wrong plan does not say what is wrong."""

    def problems(self, everyone: Sequence[Told], *, num_ranks: int) -> Iterator[str]:
        for _ in super().problems(everyone, num_ranks=num_ranks):
            yield "invalid configuration"


@breaks("ERR-9", tells="names a schedule that does not exist; (no rank raised|rank .* raised)")
class UnknownIsGpipe(ReferenceAdapter):
    """An unknown schedule is taken for GPipe."""

    def build(self, plan: Plan) -> ReferencePipeline:
        """Build GPipe instead."""
        return super().build(plan if plan.schedule in OFFERS else replace(plan, schedule="GPipe"))


@breaks("ERR-9", tells="one stage more than a multiple of the ranks; no rank raised")
class SurplusStagesDropped(ReferenceAdapter):
    """Stages beyond a multiple of the ranks are silently dropped."""

    def build(self, plan: Plan) -> ReferencePipeline:
        """Build the others."""
        n = len(plan.stages) // len(plan.ranks.pipeline_ranks) * len(plan.ranks.pipeline_ranks)
        return super().build(replace(plan, stages=plan.stages[:n], placement=plan.placement[:n]))


# --------------------------------------------------------------------------------- after an error


class _Refused:
    """A process's memory of a refused plan."""

    once = False


@breaks("ERR-11", status="error", tells="a new pipeline fails: RuntimeError: the engine is being initialised")
class RefusalLocks(ReferenceAdapter):
    """After a refused plan the process builds nothing more."""

    def build(self, plan: Plan) -> ReferencePipeline:
        """Build, unless a plan was refused before."""
        if _Refused.once:
            raise RuntimeError("the engine is being initialised")
        try:
            return super().build(plan)
        except ValueError:
            _Refused.once = True
            raise


@breaks(
    "ERR-15",
    status="error",
    tells="the same pipeline fails: RuntimeError: the pipeline is closed",
    also=("ERR-11",),
)
class RefusalClosesPipeline(ReferencePipeline):
    """A pipeline that refused a batch is closed."""

    broken = False

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if self.broken:
            raise RuntimeError("the pipeline is closed")
        try:
            return super().run(mode, batch)
        except ValueError:
            self.broken = True
            raise


@breaks(
    "ERR-15",
    status="error",
    tells="the same pipeline fails: ValueError: argument 0 of stage 0 has another",
    also=("ERR-11",),
)
class RefusedBatchRemembered(BatchCheck):
    """Batches are compared with an earlier batch that was refused."""

    def check(self, batch: Batch) -> None:
        try:
            super().check(batch)
        except (TypeError, ValueError):
            self._first = None
            with contextlib.suppress(TypeError, ValueError):
                super().check(batch)
            raise


@breaks("ERR-15", status="hung", tells="and an error, the same pipeline waits forever", also=("ERR-1",))
class RefusedBatchDrained(ReferencePipeline):
    """After a refused batch the first rank waits for messages about it from the last one."""

    refused = False

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        group, position = self.plan.ranks.pipeline_group, self.plan.ranks.pipeline_rank
        if self.refused and group is not None and position == 0:
            dist.recv(torch.empty(1, device=self.plan.ranks.device), group=group, group_src=group.size() - 1)
        try:
            return super().run(mode, batch)
        except ValueError:
            self.refused = True
            raise


@breaks("ERR-15", tells="the same pipeline is wrong: .*gradient")
class RefusedBatchCounted(ReferencePipeline):
    """A refused batch counts in the mean over microbatches."""

    refused = 0

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        try:
            return super().run(mode, batch)
        except ValueError:
            self.refused += 1
            raise

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        return replace(work, divisor=work.divisor * (1 + self.refused))
