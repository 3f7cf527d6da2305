"""Faults of what needs a gradient now and then: stages that are frozen and unfrozen (TRN-28), or passed by (TRN-6)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pipeconform.adapter import Batch, Mode, Plan, StepResult

from ..adapter import ReferencePipeline
from ..stage import Stage
from .fault import breaks

_WRONG = r"the gradient of [\w.]+ in stage \d+ is not the reference's"


class _AsAtFirst(ReferencePipeline):
    """What of a stage's input needs a gradient is asked once, and taken for what always does."""

    def __init__(self, plan: Plan) -> None:
        self.asked: dict[tuple[int, int], bool] = {}
        super().__init__(plan)

    def make_stage(self, index: int, module: nn.Module) -> Stage:
        def as_at_first(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            if not torch.is_grad_enabled():
                return args
            return tuple(
                value.detach()
                if isinstance(value, Tensor) and not self.asked.setdefault((index, k), value.requires_grad)
                else value
                for k, value in enumerate(args)
            )

        if index:
            module.register_forward_pre_hook(as_at_first)
        return super().make_stage(index, module)


@breaks("TRN-28", tells=_WRONG, also=("TRN-6",))
class NeedsOfTheFirstStep(_AsAtFirst):
    """A stage's input that needs no gradient in the first training step is taken for one that never does."""


@breaks("TRN-6", tells=_WRONG)
class NeedsOfTheFirstMicrobatch(_AsAtFirst):
    """A stage's input that needs no gradient in a step's first microbatch is taken for one that does in none."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        self.asked.clear()
        return super().run(mode, batch)


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
