"""Faults that show where a caller divides a sum by how many targets count: some microbatches have none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from pipeconform.adapter import Batch, Mode, Plan, StepResult

from ..adapter import ReferencePipeline
from ..runtime import Yield
from .fault import breaks


@breaks("TRN-20", tells=r"\d+ loss(es)? for \d+ microbatch(es)?$")
class ZeroLossesLeftOut(ReferencePipeline):
    """Losses that are zero are left out, as if their microbatches had not been run."""

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        if result.losses is None or mode is Mode.EVAL:
            return result
        return replace(result, losses=[loss for loss in result.losses if float(loss)])


@breaks("TRN-20", tells=r"the loss of microbatch \d is not the reference's")
class LossKwargsOfTheFirstStep(ReferencePipeline):
    """The loss function's extra arguments are those of the first step, in every step."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._first: Mapping[str, Any] | None = None

    def make_loss(self, batch: Batch) -> Callable[[Any, Any], Tensor]:
        if self._first is None:
            self._first = batch.loss_kwargs
        return super().make_loss(replace(batch, loss_kwargs=self._first))
