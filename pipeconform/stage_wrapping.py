"""Helpers for adapters of engines whose user replicates the stages with torch's own wrappers.

``wrapped`` wraps a stage as `Plan.data_parallel` says; ``bare`` gives the module whose names are the builder's.
Gradients and parameters of sharded stages are `DTensor`s: they are judged shard by shard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from pipeconform.adapter import Plan

__all__ = ["bare", "wrapped"]


def wrapped(plan: Plan, stage: int, module: nn.Module) -> nn.Module:
    """`module`, which is `stage` on its device, wrapped as the plan says; collective over the stage's replicas.

    A stage without trainable parameters stays as it is under ``ddp``, which refuses such modules.
    """
    how = plan.data_parallel
    if how is None:
        return module
    group = plan.ranks.replica_groups[stage]
    if how.wrapper == "fully_shard":
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        # meshes of equal names and ranks are equal, and torch's caches then mix up their groups
        name = f"replicas_{group.group_name}"
        mesh = DeviceMesh.from_group(group, plan.ranks.device.type, mesh_dim_names=(name,))
        for block in module.get_submodule("blocks").children() if how.nested else ():
            if any(True for _ in block.parameters()):
                fully_shard(block, mesh=mesh)
        fully_shard(module, mesh=mesh)  # in place
        return module
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(
        module,
        process_group=group,
        broadcast_buffers=False,
        gradient_as_bucket_view=how.bucket_views,
        static_graph=how.static_graph,
        find_unused_parameters=how.find_unused,
    )
    if how.hook is not None:
        ddp.register_comm_hook((stage, group), how.hook)
    return ddp


def bare(module: nn.Module) -> nn.Module:
    """What was wrapped; a sharded module is its own."""
    from torch.nn.parallel import DistributedDataParallel

    return module.module if isinstance(module, DistributedDataParallel) else module
