"""The reference, which ends a group of its own when it is closed, as DeepSpeed does; one rank raises in a step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from pipeconform.reference_impl.adapter import ReferenceAdapter

from pipeconform.adapter import Plan

__all__ = ["Closes"]


class Closes(ReferenceAdapter):
    def build(self, plan: Plan) -> Any:
        return _Pipeline(super().build(plan), plan)


class _Pipeline:
    def __init__(self, pipeline: Any, plan: Plan) -> None:
        self._pipeline, self._ranks = pipeline, plan.ranks
        self._own = dist.new_group(list(plan.ranks.pipeline_ranks))
        self._sum = torch.zeros(1, device=plan.ranks.device)
        dist.all_reduce(self._sum, group=self._own)  # makes the communicator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def run(self, *given: Any, **others: Any) -> Any:
        if self._ranks.pipeline_rank == 1:
            dist.all_reduce(self._sum, group=self._own, async_op=True)
            torch.nn.Identity().get_parameter("absent")  # raises in torch: the adapter is not to blame
        return self._pipeline.run(*given, **others)

    def close(self) -> None:
        self._pipeline.close()
        dist.destroy_process_group(self._own)
