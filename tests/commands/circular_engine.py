"""An engine whose ranks wait for each other in a circle."""

from __future__ import annotations

import torch
import torch.distributed as dist
from pipeconform.reference_impl.adapter import ReferenceAdapter, ReferencePipeline

from pipeconform.adapter import Batch, Mode, StepResult


class _Waiting(ReferencePipeline):
    def run(self, mode: Mode, batch: Batch) -> StepResult:
        ranks = self.plan.ranks
        own = ranks.pipeline_rank
        if own is not None and len(ranks.pipeline_ranks) > 1:
            before = ranks.pipeline_ranks[own - 1]
            dist.recv(torch.empty(3), before, group=ranks.pipeline_group)
        return super().run(mode, batch)


class Circular(ReferenceAdapter):
    """Before every run each rank receives from the one before it, and no rank sends."""

    pipeline = _Waiting
