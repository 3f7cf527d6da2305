"""Helpers for adapters of engines whose users cut and replicate stages with torch's own means.

``wrapped`` cuts a stage as `Plan.tensor_parallel` says and wraps it as `Plan.data_parallel` says; ``bare`` returns the
module with the builder's names. Gradients and parameters of cut and sharded stages are `DTensor`s: they are
judged part by part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement

    from pipeconform.adapter import CutLayer, HeldBatch, Plan

__all__ = ["axis_of_parts", "bare", "placed", "placement_of_held", "wrapped"]


def wrapped(plan: Plan, stage: int, module: nn.Module) -> nn.Module:
    """Cut and wrap `module`, which is `stage` on its device, as the plan says; collective over the stage's ranks.

    A stage without trainable parameters stays as it is under ``ddp``, which refuses such modules.
    """
    _cut(plan, stage, module)
    how = plan.data_parallel
    if how is None:
        return module
    group = plan.ranks.replica_groups[stage]
    if how.wrapper == "fully_shard":
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy()
        if how.mixed_precision:
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mesh = _replicas(plan, stage)
        for block in module.get_submodule("blocks").children() if how.nested else ():
            if any(True for _ in block.parameters()):
                fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(module, mesh=mesh, mp_policy=policy)  # in place
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
    """The module inside a wrapper; a sharded module is returned unchanged."""
    from torch.nn.parallel import DistributedDataParallel

    return module.module if isinstance(module, DistributedDataParallel) else module


def placement_of_held(held: HeldBatch) -> Any:
    """The torch placement for a part of a tensor ``[B, S, W]`` or ``[B, W]``."""
    from torch.distributed.tensor import Replicate, Shard

    return Replicate() if held == "whole" else Shard({"samples": 0, "sequence": 1, "width": -1}[held])


def axis_of_parts(mesh: DeviceMesh) -> DeviceMesh:
    """The axis of a stage's mesh over which its tensors are cut."""
    assert mesh.mesh_dim_names is not None
    return mesh[mesh.mesh_dim_names[-1]]


def placed(x: Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    """A tensor that every rank has whole, as a `DTensor`; nothing is sent."""
    from torch.distributed.tensor import DTensor, Replicate

    made: DTensor = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    handed: DTensor = made.redistribute(placements=[placement])
    return handed


def _replicas(plan: Plan, stage: int) -> DeviceMesh:
    """The replicas of a stage as a mesh: an axis of the stage's mesh if the stage is also cut."""
    from torch.distributed.device_mesh import DeviceMesh

    mesh, group = plan.ranks.mesh, plan.ranks.replica_groups[stage]
    if mesh is not None:
        assert mesh.mesh_dim_names is not None
        return mesh[mesh.mesh_dim_names[0]]
    # meshes with equal names and ranks are equal, and torch's caches then mix up their groups
    name = f"replicas_{group.group_name}"
    return DeviceMesh.from_group(group, plan.ranks.device.type, mesh_dim_names=(name,))


def _cut(plan: Plan, stage: int, module: nn.Module) -> None:
    """Cut the layers of a stage over the last axis of its mesh."""
    how, mesh = plan.tensor_parallel, plan.ranks.mesh
    if how is None or mesh is None or stage not in how.layers:
        return
    from torch.distributed.tensor.parallel import PrepareModuleInputOutput, parallelize_module

    axis = axis_of_parts(mesh)
    parallelize_module(module, axis, {name: _style(layer) for name, layer in how.layers[stage].items()})
    if how.stream != "whole":
        whole, part = placement_of_held("whole"), placement_of_held(how.stream)
        edges = PrepareModuleInputOutput(
            input_layouts=whole,
            desired_input_layouts=part,
            use_local_input=True,
            output_layouts=part,
            desired_output_layouts=whole,
        )
        parallelize_module(module, axis, edges)


def _style(layer: CutLayer) -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    takes, gives = placement_of_held(layer.takes), placement_of_held(layer.gives)
    match layer.style:
        case "column":
            return ColwiseParallel(input_layouts=takes, output_layouts=gives)
        case "row":
            return RowwiseParallel(input_layouts=takes, output_layouts=gives)
    return SequenceParallel(sequence_dim=1, use_local_output=True)
