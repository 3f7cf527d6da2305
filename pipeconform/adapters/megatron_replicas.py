"""megatron-core's own data parallelism: stages in its ``DistributedDataParallel``, whose gradients lie in buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pipeconform.adapter import Plan
from pipeconform.adapters.without_cuda import run_on

__all__ = ["MegatronReplicas", "buffered_gradients", "is_wrapped"]


def is_wrapped(plan: Plan) -> bool:
    """Whether gradients lie in the buffers of ``DistributedDataParallel``: of replicas, or for float32 sums."""
    return plan.ranks.num_replicas > 1 or plan.float32_sums


class MegatronReplicas:
    """A rank's stages, wrapped, and what their schedule has to be told; a single replica is wrapped for its buffers."""

    def __init__(self, plan: Plan, stages: Sequence[Any], *, alone: dist.ProcessGroup) -> None:
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
            param_and_grad_buffer,
        )
        from megatron.core.process_groups_config import ProcessGroupCollection

        run_on(plan.ranks.device, param_and_grad_buffer)
        own_groups = [plan.ranks.replica_groups.get(stage.index, alone) for stage in stages]
        self.group = own_groups[0]
        """Of one of the stages; those of the others have the same ranks."""
        self.stages: list[Any] = []
        for number, (stage, own) in enumerate(zip(stages, own_groups, strict=True)):
            groups = ProcessGroupCollection(
                dp=own, dp_cp=own, expt_dp=alone, tp=alone, ep=alone, pp=plan.ranks.pipeline_group
            )
            wrapped = DistributedDataParallel(
                stage.config,
                DistributedDataParallelConfig(grad_reduce_in_fp32=plan.float32_sums),
                stage,
                disable_bucketing=number > 0,  # as Megatron-LM does
                pg_collection=groups,
            )
            self.stages.append(wrapped)

    def tell(self, config: Any) -> None:
        """Have the schedule reduce gradients at the end of a step, and not before."""
        from megatron.core.distributed import finalize_model_grads

        several = [wrapped.no_sync for wrapped in self.stages]
        config.no_sync_func = several if len(several) > 1 else several[0]
        config.finalize_model_grads_func = finalize_model_grads

    def clear(self) -> None:
        """Zero the buffers, which takes the place of clearing gradients."""
        for wrapped in self.stages:
            wrapped.zero_grad_buffer()


def buffered_gradients(
    modules: Mapping[int, nn.Module],
) -> dict[int, dict[str, torch.Tensor | None]]:
    """`gradients()` of wrapped stages; None where nothing is trained."""
    return {
        s: {name: getattr(p, "main_grad", None) for name, p in module.named_parameters()}
        for s, module in modules.items()
    }
