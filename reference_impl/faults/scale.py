"""Faults of scale: gradients and losses multiplied by the wrong number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pipeconform.adapter import Batch, Mode, StepResult

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..runtime import Work, Yield
from ..stage import Stage
from .fault import breaks


class _NotDivided(ReferencePipeline):
    def make_work(self, mode: Mode, batch: Batch) -> Work:
        return replace(super().make_work(mode, batch), divisor=1)


@breaks("TRN-3", source="https://github.com/deepspeedai/DeepSpeed/issues/7773")
class NotDivided(ReferenceAdapter):
    """A mean loss is not divided by the number of microbatches."""

    pipeline = _NotDivided


@breaks("TRN-3", source="https://github.com/areal-project/AReaL/pull/1273")
class SumDivided(ReferencePipeline):
    """A sum-reduced loss is divided by the number of microbatches."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        return replace(super().make_work(mode, batch), divisor=batch.num_microbatches)


@breaks("LIF-1", source="https://github.com/deepspeedai/DeepSpeed/pull/4859", also=("TRN-3",))
class FirstCountKept(ReferencePipeline):
    """A mean loss is divided by the m that the pipeline was built for, not by this step's."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        return replace(super().make_work(mode, batch), divisor=self.plan.num_microbatches)


@breaks("TRN-3", source="https://github.com/deepspeedai/DeepSpeed/pull/8154")
class OneStageScaled(Stage):
    """Stage 0 scales its gradients by 1/4; losses and all other stages are right."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        if self.index == 0:
            gradients = [None if g is None else g / 4 for g in gradients]
        return super().backward(microbatch, gradients)


@breaks("TRN-2")
class LossesDivided(ReferencePipeline):
    """The losses are returned divided by the number of microbatches."""

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        m = batch.num_microbatches
        return super().make_result(
            mode, batch, replace(done, losses={k: loss / m for k, loss in done.losses.items()})
        )


@breaks("TRN-4", source="https://github.com/pytorch/torchtitan/issues/1733")
class EarlierRescaled(_NotDivided):
    """The division by m happens at the end of the step, and rescales gradients accumulated before."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        result = super().run(mode, batch)
        if mode is Mode.TRAIN and self.plan.loss.reduction == "mean":
            with torch.no_grad():
                for module in self.modules.values():
                    for parameter in module.parameters():
                        if parameter.grad is not None:
                            parameter.grad /= batch.num_microbatches
        return result
