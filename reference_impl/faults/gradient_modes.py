"""Faults about the caller's gradient mode."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from pipeconform.adapter import Batch, Mode, StepResult

from ..adapter import ReferencePipeline
from .fault import breaks

_TELLS = r"the step is run under torch\."


@breaks("ERR-20", tells=_TELLS)
class TrainsNothing(ReferencePipeline):
    """A step that finds gradients switched off computes outputs and losses, and trains nothing."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if mode is Mode.TRAIN and not torch.is_grad_enabled():
            return super().run(Mode.EVAL, batch)
        return super().run(mode, batch)


@breaks("ERR-20", tells=_TELLS)
class OnlyLastRankRefuses(ReferencePipeline):
    """The ranks before the last one switch gradients on again, and learn from a lost connection that it refused."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        with ExitStack() as stack:
            if len(self.plan.stages) - 1 not in self.modules:
                stack.enter_context(torch.inference_mode(mode=False))
                stack.enter_context(torch.enable_grad())
            return super().run(mode, batch)
