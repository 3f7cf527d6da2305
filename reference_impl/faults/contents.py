"""Faults that show only with special contents of stages: checkpoints, losses, state and ties of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from pipeconform.adapter import Batch, Mode, Plan, StepResult

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..runtime import Work
from ..stage import Stage
from .fault import breaks


@breaks("TRN-11", status="error")
class EvalBetweenForwards(Stage):
    """Modules are in training mode during forwards only, not during recomputations in the backward."""

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        self.module.train(differentiate)
        output = super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)
        self.module.eval()
        return output


class _LossScaled(ReferencePipeline):
    factor = 1024.0

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        function = work.loss
        if function is None:
            return work
        return replace(work, loss=lambda output, target: function(output, target) * self.factor)

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        parameters = [p for module in self.modules.values() for p in module.parameters()]
        before = [p.grad for p in parameters]
        if mode is Mode.TRAIN:
            for parameter in parameters:
                parameter.grad = None
        result = super().run(mode, batch)
        if mode is Mode.EVAL:
            return result
        for parameter, earlier in zip(parameters, before, strict=True):
            if parameter.grad is not None:
                parameter.grad /= self.factor
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else earlier + parameter.grad
        losses = None if result.losses is None else [loss / self.factor for loss in result.losses]
        found = result.input_gradients
        scaled = None if found is None else [None if g is None else g / self.factor for g in found]
        return replace(result, losses=losses, input_gradients=scaled)


@breaks("TRN-13")
class LossScaled(ReferenceAdapter):
    """Gradients of auxiliary losses are unscaled, but never scaled.

    The loss is multiplied by 1024 and every gradient divided by it, an auxiliary loss's too.
    """

    pipeline = _LossScaled


@breaks("TRN-18")
class StateRestored(Stage):
    """A module's attributes are restored after each forward.

    This keeps microbatches apart, but discards what a module records about them.
    """

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        before = [(part, dict(vars(part))) for part in self.module.modules()]
        output = super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)
        for part, attributes in before:
            vars(part).update(attributes)
        return output


@breaks("TRN-8", source="https://github.com/NVIDIA/Megatron-LM/issues/656")
class TiesBroken(ReferencePipeline):
    """Tied parameters are cloned: modules register them anew, one by one."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        for module in self.modules.values():
            seen: set[int] = set()
            for part in module.modules():
                for name, parameter in list(part._parameters.items()):
                    if id(parameter) in seen and parameter is not None:
                        own = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                        setattr(part, name, own)
                    seen.add(id(parameter))


@breaks("TRN-16", also=("TRN-7", "TRN-23"))
class Overflows(_LossScaled):
    """The loss is scaled by more than float16 can hold."""

    factor = 2.0**18
