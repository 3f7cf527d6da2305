"""Faults that show only with a batch norm over all replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pipeconform.adapter import Batch, Mode, StepResult

from ..adapter import ReferencePipeline
from ..containers import arguments_of
from ..runtime import Work, Yield
from ..stage import Stage
from .fault import breaks


@breaks("DPC-9", tells=r"the (output|loss) of microbatch \d is not the reference's")
class OtherOrderOnLaterReplicas(ReferencePipeline):
    """All replicas but the first run their microbatches from the last to the first: each alone is right."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        if not self.plan.ranks.replica:
            return work
        inputs, targets = list(reversed(work.inputs)), list(reversed(work.targets))
        return dataclasses.replace(work, inputs=inputs, targets=targets)

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        if self.plan.ranks.replica:
            last = batch.num_microbatches - 1
            done = dataclasses.replace(
                done,
                outputs={last - k: value for k, value in done.outputs.items()},
                losses={last - k: value for k, value in done.losses.items()},
                input_gradients={last - k: value for k, value in done.input_gradients.items()},
            )
        return super().make_result(mode, batch, done)


@breaks("DPC-9", tells=r"the buffer of blocks\.\d\.norm\.running_\w+ in stage \d is not the reference's")
class NormsOnTheirOwn(ReferencePipeline):
    """Batch norms lose the group over which they should be synchronised."""

    def make_replicated(self, index: int, module: nn.Module) -> nn.Module:
        for part in module.modules():
            if hasattr(part, "over"):
                object.__setattr__(part, "over", None)
        return super().make_replicated(index, module)


class _TwiceStage(Stage):
    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        arguments = arguments_of(inputs)
        if differentiate and microbatch == 0:
            with torch.no_grad():
                self.module(*arguments, **kwargs)
        return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)


@breaks(
    "DPC-9", tells=r"the buffer of blocks\.\d\.norm\.\w+ in stage \d is not the reference's", also=("TRN-9",)
)
class TriedFirst(ReferencePipeline):
    """Every stage runs the first microbatch once to see its outputs, on all replicas alike."""

    stage_type = _TwiceStage


@breaks("DPC-9", also=("TRN-9",), status="hung")  # what is tried changes buffers, too
class TriedOnOneReplica(ReferencePipeline):
    """Only the first replica runs the first microbatch once more, so the others' statistics lag one forward behind."""

    def make_stage(self, index: int, module: nn.Module) -> Stage:
        kind = Stage if self.plan.ranks.replica else _TwiceStage
        return kind(module, index=index, batch_dim=self.plan.batch_dim)
