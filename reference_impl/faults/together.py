"""Faults that only two things at once show: each of the two is right alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from pipeconform.adapter import Batch, LoadState, Mode, Operation, Plan, StepResult
from pipeconform.schedule import Action

from ..adapter import ReferencePipeline
from ..runtime import Step, Work
from .fault import breaks

# ------------------------------------------------------------------------------- TRN-22: of one pipeline


# cut stages gather and scatter in hooks: DPC-10
@breaks("TRN-22", also=("DPC-10",))
class HooksLostAfterEvaluation(ReferencePipeline):
    """An evaluation takes the model's forward and backward hooks away, and they do not come back."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        found = super().run(mode, batch)
        for module in self.modules.values() if mode is Mode.EVAL else ():
            for part in module.modules():
                _without_hooks(part)
        return found


def _without_hooks(module: nn.Module) -> None:
    for hooks in (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    ):
        hooks.clear()


@breaks("TRN-22", tells=r"the output of microbatch \d is not the reference's")
class KeywordsOfTrainingKept(ReferencePipeline):
    """An evaluation computes with the keyword arguments of the training step before it."""

    def __init__(self, plan: Plan) -> None:
        self._kwargs: Mapping[int, Any] | None = None
        super().__init__(plan)

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        if mode is Mode.TRAIN:
            self._kwargs = work.kwargs
        elif self._kwargs is not None:
            return replace(work, kwargs=self._kwargs)
        return work


# ------------------------------------------------------- DPC-10: of replicas and stages that are cut


@breaks("DPC-10")
class UnsynchronisedAfterEvaluation(ReferencePipeline):
    """An evaluation switches the synchronisation of replicas off, and the next training step does without it."""

    _off = False

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        found = super().run(mode, batch)
        self._off = mode is Mode.EVAL
        return found

    def make_step(self, work: Work) -> Step:
        step = super().make_step(work)
        if self._off:
            step.complete_after = _never  # type: ignore[method-assign]
        return step


def _never(actions: Sequence[Action]) -> Mapping[int, Sequence[int]]:
    return {}


@breaks("DPC-10", tells=r"after evaluation the gradient of blocks\.\d\.[\w.]+ is gone")
class GradientsOfShardsDropped(ReferencePipeline):
    """Stages in fully_shard are prepared anew for an evaluation, and their gradients are cleared with that."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        found = super().run(mode, batch)
        replicas = self.plan.data_parallel
        if mode is Mode.EVAL and replicas is not None and replicas.wrapper == "fully_shard":
            for module in self.modules.values():
                module.zero_grad(set_to_none=True)
        return found


@breaks("DPC-10")
class LoadedByTheFirstReplica(ReferencePipeline):
    """Only the first replica loads a state: the others would have got it when they were built."""

    def apply(self, operation: Operation) -> None:
        if not isinstance(operation, LoadState) or not self.plan.ranks.replica:
            super().apply(operation)


@breaks("DPC-10", tells=r"the gradient of blocks\.\d\.[\w.]+ in stage \d is not the reference's")
class EarlierGradientsOfPartsLost(ReferencePipeline):
    """A step of stages that are cut over ranks begins with gradients of its own, and earlier ones are lost."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if mode is Mode.TRAIN and self.plan.ranks.num_tensor_ranks > 1:
            for module in self.modules.values():
                module.zero_grad(set_to_none=True)
        return super().run(mode, batch)
