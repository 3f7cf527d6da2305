# ruff: noqa
# mypy: ignore-errors
"""Replicas of stages, and what is compared between them."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def sharded(stage, s, group, nested):
    """A stage in fully_shard, over the group of its replicas."""
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=(f"replicas_{s}",))
    for block in stage.blocks if nested else ():
        if any(True for _ in block.parameters()):
            fully_shard(block, mesh=mesh)
    return fully_shard(stage, mesh=mesh)


def averaged(group, bucket):
    """The average of a bucket, as DistributedDataParallel itself computes it."""
    buffer = bucket.buffer().div_(group.size())
    return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(lambda one: one.value()[0])


def raising(group, bucket):
    raise RuntimeError("raised on purpose")


def differing(seen):
    """Gradients that another replica of the stage has otherwise."""
    everybody = [None] * WORLD
    dist.all_gather_object(everybody, seen)
    for rank, theirs in enumerate(everybody):
        for step, (one, other) in enumerate(zip(seen, theirs)):
            for name in sorted(one.keys() & other.keys()):
                if one[name] is not None and other[name] is not None and not one[name].equal(other[name]):
                    yield f"after step {step}, gradient of {name} is another one on rank {rank}"
