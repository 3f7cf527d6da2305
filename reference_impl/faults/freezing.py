"""Faults of stages that are frozen and unfrozen between steps (TRN-28)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pipeconform.adapter import Batch, Mode, Plan, StepResult

from ..adapter import ReferencePipeline
from ..stage import Stage
from .fault import breaks

_WRONG = r"the gradient of [\w.]+ in stage \d+ is not the reference's"


@breaks("TRN-28", tells=_WRONG)
class NeedsOfTheFirstStep(ReferencePipeline):
    """A stage's input that needs no gradient in the first training step is taken for one that never does."""

    def make_stage(self, index: int, module: nn.Module) -> Stage:
        needed: dict[int, bool] = {}

        def as_at_first(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            if not torch.is_grad_enabled():
                return args
            return tuple(
                value.detach()
                if isinstance(value, Tensor) and not needed.setdefault(k, value.requires_grad)
                else value
                for k, value in enumerate(args)
            )

        if index:
            module.register_forward_pre_hook(as_at_first)
        return super().make_stage(index, module)


class _AsMade(ReferencePipeline):
    """Knows which parameters needed a gradient when the pipeline was made."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.needed = {p: p.requires_grad for module in self.modules.values() for p in module.parameters()}


@breaks("TRN-28", tells=_WRONG)
class TrainableWhenMade(_AsMade):
    """Parameters that were frozen when the pipeline was made never get gradients."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        result = super().run(mode, batch)
        for parameter, needed in self.needed.items():
            if not needed:
                parameter.grad = None
        return result


@breaks("TRN-28", tells=_WRONG)
class TrainedAsMade(_AsMade):
    """Parameters that were trainable when the pipeline was made get gradients in every step."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        asked = {parameter: parameter.requires_grad for parameter in self.needed}
        for parameter, needed in self.needed.items():
            parameter.requires_grad_(asked[parameter] or needed)
        try:
            return super().run(mode, batch)
        finally:
            for parameter, needed in asked.items():
                parameter.requires_grad_(needed)
