"""Weights that megatron-core's models share between the first and the last stage: word embeddings and output layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from pipeconform.adapter import Plan

__all__ = ["MegatronTies", "group_of_ends"]


def group_of_ends(plan: Plan) -> dist.ProcessGroup | None:
    """A new group of the pipeline's first and last rank on these two, None elsewhere; every rank of the world calls it.

    Like Megatron's own embedding groups it is made by all ranks, which for that tell each other who the ends are.
    """
    ranks = plan.ranks.pipeline_ranks if plan.ranks.pipeline_rank is not None else ()
    mine = tuple(sorted({ranks[0], ranks[-1]})) if ranks else ()
    told: list[Any] = [None] * plan.ranks.world_size
    dist.all_gather_object(told, mine)
    groups = {ends: dist.new_group(list(ends)) for ends in sorted(set(filter(None, told)))}
    return groups[mine] if plan.ranks.rank in mine else None


class MegatronTies:
    """The tied weight on a rank that holds it, and the group of the two ranks that add up its gradients."""

    def __init__(self, plan: Plan, stages: Sequence[Any], group: dist.ProcessGroup | None) -> None:
        (where,) = plan.tied
        self.group = group
        self._weight: Any = None
        for stage in stages:
            if stage.index in where:
                self._weight = stage.shares(where[stage.index])
                if stage.index:  # as Megatron's models mark the copy, so that norms count it once
                    self._weight.shared = True

    def tell(self, config: Any) -> None:
        """Have the schedule add up the ends' gradients at the end of a step, where nothing else makes it do so."""
        from megatron.core.distributed import finalize_model_grads

        config.finalize_model_grads_func = finalize_model_grads

    @contextmanager
    def step(self) -> Iterator[None]:
        """Set earlier steps' gradient apart: Megatron-LM has none there, and would add up both ranks' again."""
        name = "main_grad" if hasattr(self._weight, "main_grad") else "grad"
        gradient: torch.Tensor | None = getattr(self._weight, name, None)
        if gradient is None:
            yield
            return
        earlier = gradient.clone()
        gradient.zero_()  # in place: it may lie in a buffer
        try:
            yield
        finally:
            getattr(self._weight, name).add_(earlier)

    def close(self) -> None:
        """Destroy the group."""
        if self.group is not None:
            dist.destroy_process_group(self.group)
            self.group = None
