"""Faults of a second schedule that evaluates the stages of the training schedule (LIF-9)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pipeconform.adapter import Batch, Mode, Plan, StepResult

from ..adapter import ReferencePipeline
from ..runtime import Step, Work
from ..stage import Stage
from .fault import breaks

_WRONG = r"the gradient of [\w.]+ in stage \d+ is not the reference's"


class _Second(ReferencePipeline):
    """Knows whether the second schedule has evaluated."""

    def __init__(self, plan: Plan) -> None:
        self.second_ran = False
        super().__init__(plan)

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        result = super().run(mode, batch)
        self.second_ran |= mode is Mode.EVAL and self.plan.second_schedule
        return result


class _Emptied(Step):
    emptied = False

    def backward(self, s: int, k: int, *, whole: bool) -> None:
        if self.emptied and s != self._last:
            found = self.output_gradients[s, k]
            self.output_gradients[s, k] = [None if one is None else torch.zeros_like(one) for one in found]
        super().backward(s, k, whole=whole)


@breaks("LIF-9", tells=_WRONG)
class BuffersOfTheSecondSchedule(_Second):
    """The second schedule makes new buffers for gradients, and those that the first one reads stay zero."""

    step_type = _Emptied

    def make_step(self, work: Work) -> Step:
        step = super().make_step(work)
        if isinstance(step, _Emptied):
            step.emptied = self.second_ran
        return step


@breaks("LIF-9", tells=_WRONG)
class NeedsOfTheSecondSchedule(_Second):
    """That no activation needs a gradient in the second schedule is kept in the stage."""

    def make_stage(self, index: int, module: nn.Module) -> Stage:
        def as_in_the_second(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            if not self.second_ran or not torch.is_grad_enabled():
                return args
            return tuple(value.detach() if isinstance(value, Tensor) else value for value in args)

        if index:
            module.register_forward_pre_hook(as_in_the_second)
        return super().make_stage(index, module)


@breaks("LIF-9", tells=r"the output")
class OutputsOfTheFirstSchedule(ReferencePipeline):
    """The second schedule returns what the last training step left in the stage."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._last_output: Any = None

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        result = super().run(mode, batch)
        if mode is Mode.TRAIN:
            self._last_output = result.output
        elif self.plan.second_schedule and self._last_output is not None:
            return replace(result, output=self._last_output)
        return result
