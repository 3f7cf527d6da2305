"""An engine that hangs on several ranks: what a run must find, and explain, on every device."""

from __future__ import annotations

import torch
import torch.distributed as dist
from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline

from pipeconform.adapter import Batch, Mode, StepResult

__all__ = ["Hanging"]


class _Waiting(ReferencePipeline):
    """Every rank receives from the one before it, and no rank sends."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        ranks = self.plan.ranks
        own = ranks.pipeline_rank
        if own is not None and len(ranks.pipeline_ranks) > 1:
            value = torch.empty(3, device=ranks.device)
            dist.recv(value, ranks.pipeline_ranks[own - 1], group=ranks.pipeline_group)
            value.sum().item()  # a device's receive only orders its stream; this waits for it
        return super().run(mode, batch)


class Hanging(ReferenceAdapter):
    """The reference, but that its ranks wait for each other before every step."""

    pipeline = _Waiting
