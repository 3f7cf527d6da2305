"""Defects of real engines that users reported, reproduced: in what is kept between microbatches and steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from pipeconform.adapter import Batch, Mode, Operation, OptimizerStep, Plan, StepResult

from ..adapter import ReferencePipeline
from ..stage import Stage
from .fault import breaks


@breaks(
    "SPL-1",
    schedule="ZB-H1",
    status="error",
    tells=r"stage \d, microbatch \d",
    source="https://github.com/pytorch/pytorch/issues/142229",
)
class ViewsDetached(Stage):
    """Outputs are detached in place when their backward has run, which torch refuses for views."""

    def backward_input(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        outputs = self._in_flight[microbatch].outputs
        found = super().backward_input(microbatch, gradients)
        for output in outputs:
            output.detach_()
        return found


@breaks("TRN-1", source="https://github.com/allenai/OLMo-core/pull/749")
class SlotGradientsKept(Stage):
    """A received input keeps its gradient until the next step's is added to it, because its buffer is used again."""

    def __init__(self, *args: object, **named: object) -> None:
        super().__init__(*args, **named)  # type: ignore[arg-type]  # passed on
        self._slots: dict[tuple[int, int], Tensor] = {}

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        found = super().backward(microbatch, gradients)
        return [self._added(microbatch, position, one) for position, one in enumerate(found)]

    def _added(self, microbatch: int, position: int, gradient: Tensor | None) -> Tensor | None:
        if gradient is None or self.index == 0:
            return gradient
        there = self._slots.get((microbatch, position))
        if there is not None and there.shape == gradient.shape:
            gradient = there + gradient
        self._slots[microbatch, position] = gradient
        return gradient


class _SharingStage(Stage):
    """Keeps only its latest contribution to gradients, if its rank has other stages."""

    shares = False

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        if self.shares:
            for parameter in self.module.parameters():
                parameter.grad = None
        return super().backward(microbatch, gradients)


@breaks("TRN-1", schedule="Interleaved1F1B", source="https://github.com/ServiceNow/Fast-LLM/issues/550")
class GradientBufferShared(ReferencePipeline):
    """Stages of one rank share a buffer for gradients, in which only the latest microbatch's stays."""

    stage_type: ClassVar[type[Stage]] = _SharingStage

    def make_stage(self, index: int, module: nn.Module) -> Stage:
        stage = super().make_stage(index, module)
        if isinstance(stage, _SharingStage):
            stage.shares = len(self.modules) > 1
        return stage


@breaks("TRN-22", source="https://github.com/NVIDIA-NeMo/Automodel/pull/3530")
class PreparedAnewForOtherSizes(ReferencePipeline):
    """A step of another size than the one before prepares the stages anew, and gradients so far are lost."""

    _size: object = None

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        size = batch.num_microbatches, _rows(batch)
        if self._size not in (None, size):
            for module in self.modules.values():
                for parameter in module.parameters():
                    parameter.grad = None
        self._size = size
        return super().run(mode, batch)


def _rows(batch: Batch) -> object:
    return tuple(arg.shape for arg in batch.args if isinstance(arg, Tensor))


@breaks("TRN-22", source="https://github.com/NVIDIA/Megatron-LM/pull/5071")
class OptimizerKeepsItsOwn(ReferencePipeline):
    """The optimizer has copies of the parameters of its own, which a loaded state does not reach."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._own = [(p, p.detach().clone()) for module in self.modules.values() for p in module.parameters()]

    def apply(self, operation: Operation) -> None:
        if not isinstance(operation, OptimizerStep):
            super().apply(operation)
            return
        with torch.no_grad():
            for parameter, own in self._own:
                parameter.copy_(own)
            super().apply(operation)
            for parameter, own in self._own:
                own.copy_(parameter)
