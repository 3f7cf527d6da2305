"""Wrappers are constructed for many ranks in one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from pipeconform import run_on_ranks
from pipeconform.errors import UsageError
from pipeconform.wrapper_tools import stand_in_group


def _constructed(rank: int) -> dict:
    x = torch.ones(2, 3)
    with stand_in_group(rank=rank, ranks=4) as group:
        sharded = fully_shard(nn.Linear(3, 5), mesh=init_device_mesh("cpu", (4,)))
        shapes = [tuple(p.to_local().shape) for p in sharded.parameters()]
        sharded(x).sum().backward()
        ddp = DistributedDataParallel(nn.Linear(3, 5))
        ddp(x).sum().backward()
        total = torch.ones(1)
        dist.all_reduce(total)
        part = torch.empty(1)
        named = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
        getattr(dist, named)(part, torch.arange(4.0))
        pairs = init_device_mesh("cpu", (2, 2))
        return {
            "shapes": shapes,
            "DDP": ddp.module.bias.grad.tolist(),
            "sharded": sharded.bias.grad.to_local().tolist(),
            "sum": total.item(),
            "part": part.item(),
            "place": tuple(pairs.get_coordinate()),
            "size": group.size(),
        }


@pytest.mark.parametrize(("rank", "place"), [(0, (0, 0)), (3, (1, 1))])
def test_shapes_padding_and_division_are_those_of_the_ranks_that_are_not_there(rank, place) -> None:
    one = _constructed(rank)

    assert not dist.is_initialized()
    assert one["shapes"] == ([(2, 3), (2,)] if rank == 0 else [(0, 3), (0,)])
    assert one["DDP"] == [2.0] * 5
    assert one["sharded"] == ([2.0, 2.0] if rank == 0 else [])
    assert (one["sum"], one["part"], one["size"], one["place"]) == (4.0, 4.0 * rank, 4, place)


def test_a_rank_that_there_is_not_and_nobody_to_send_to_are_refused() -> None:
    with (
        pytest.raises(UsageError, match="rank 4 of 4 ranks; it is from 0 to 3"),
        stand_in_group(rank=4, ranks=4),
    ):
        pass
    with pytest.raises(UsageError, match="no other rank to send to"), stand_in_group(ranks=2):
        dist.send(torch.ones(1), 1)

    assert not dist.is_initialized()


def _with_a_group():
    from pipeconform.errors import UsageError
    from pipeconform.wrapper_tools import stand_in_group

    try:
        with stand_in_group(ranks=2):
            return ""
    except UsageError as error:
        return str(error)


def test_a_real_group_is_not_replaced() -> None:
    assert all("already" in told for told in run_on_ranks(_with_a_group, ranks=2).values)
