"""Collectives are replaced on all ranks together, whoever calls them, and restored on every path."""

from __future__ import annotations

import pytest

from pipeconform import run_on_ranks
from pipeconform.errors import UsageError
from tests.facts import tells


def _everything_counted():
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from pipeconform.wrapper_tools import counted

    found = {}
    x = torch.ones(2, 4)
    ddp = DistributedDataParallel(nn.Linear(4, 3))
    with counted("all_reduce") as count:
        ddp(x).sum().backward()  # by the reducer, from C++
    found["ddp"] = (count.calls, count.elements)
    with counted("all_reduce") as count:
        dist.all_reduce(torch.ones(3))
        dist.group.WORLD.allreduce([torch.ones(2)]).wait()
    found["plain"] = (count.calls, count.elements, count.names)
    sharded = fully_shard(nn.Linear(4, 3), mesh=init_device_mesh("cpu", (2,)), reshard_after_forward=True)
    with (
        counted("all_gather") as gathered,
        counted("reduce_scatter") as scattered,
        counted("unshard") as unshard,
        counted("reshard") as reshard,
        counted("post_backward") as after,
    ):
        sharded(x).sum().backward()
    one = (gathered.calls, scattered.calls, unshard.calls > 0, reshard.calls > 0, after.calls > 0)
    sharded(x).sum().backward()
    found["sharded"] = (*one, gathered.calls)
    return found


def test_calls_are_counted_whoever_makes_them() -> None:
    for found in run_on_ranks(_everything_counted, ranks=2).values:
        assert found["ddp"] == (1, 15)
        assert found["plain"] == (2, 5, ["allreduce_", "allreduce_"])
        assert found["sharded"] == (2, 1, True, True, True, 2)


def _delayed_on_one_rank():
    import time

    import torch
    import torch.distributed as dist

    from pipeconform.wrapper_tools import delayed

    value = torch.ones(1)
    dist.barrier()
    begun = time.monotonic()
    with delayed("all_reduce", 0.3, ranks={1}):
        dist.all_reduce(value)
    return value.item(), time.monotonic() - begun


def test_a_delay_of_one_rank_is_waited_for_by_all_and_changes_no_value() -> None:
    for value, seconds in run_on_ranks(_delayed_on_one_rank, ranks=2).values:
        assert value == 2
        assert seconds > 0.28


def _replaced_and_checked():
    import torch
    import torch.distributed as dist

    from pipeconform.wrapper_tools import checked, replaced

    def doubled(call):
        result = call.run()
        result[1].wait() if isinstance(result, tuple) else result.wait()
        call.tensors[0].mul_(2)
        return result

    def small(call):
        if call.tensors[0].numel() > 3:
            raise ValueError(f"{call.name} of {call.tensors[0].numel()} elements")

    with replaced("all_reduce", doubled):
        first = torch.ones(1)
        dist.all_reduce(first)
    second = torch.ones(1)
    dist.all_reduce(second)
    told = ""
    with checked("all_reduce", small):
        dist.all_reduce(torch.ones(3))
        try:
            dist.all_reduce(torch.ones(4))
        except ValueError as error:
            told = str(error)
    return first.item(), second.item(), told


def test_a_replacement_has_the_last_word_and_a_check_speaks_out_of_the_call() -> None:
    for first, second, told in run_on_ranks(_replaced_and_checked, ranks=2).values:
        assert (first, second) == (4, 2)
        assert told == "allreduce_ of 4 elements"


def _one_rank_raises():
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    from pipeconform.errors import HarnessError
    from pipeconform.wrapper_tools import counted

    own = FSDPParamGroup.unshard
    told = ""
    try:
        with counted("unshard", patience=1.0), counted("all_reduce", patience=1.0) as count:
            dist.all_reduce(torch.ones(1))
            if dist.get_rank() == 1:
                raise ValueError("mine")
    except (ValueError, HarnessError) as error:
        told = f"{type(error).__name__}: {error}"
    dist.all_reduce(torch.ones(1))
    return told, count.calls, FSDPParamGroup.unshard is own


def test_after_an_error_on_one_rank_all_is_restored_and_the_others_are_told() -> None:
    (first, *_), (second, *_) = values = run_on_ranks(_one_rank_raises, ranks=2).values

    assert tells(first, "HarnessError", "rank 0", "rank 1", "did not leave", "all_reduce", "within 1.0 s")
    assert second == "ValueError: mine"
    assert [(calls, restored) for _, calls, restored in values] == [(1, True), (1, True)]


def _of_a_wrapper_of_ones_own():
    from pipeconform.wrapper_tools import Place, counted

    class Base:
        def free(self, x):
            return x

    class Mine(Base):
        pass

    with counted(Place(Mine, "free")) as count:
        Mine().free(3)
    return count.calls, "free" in vars(Mine), Mine().free(4)


def test_any_function_that_is_looked_up_by_name_can_be_replaced() -> None:
    assert run_on_ranks(_of_a_wrapper_of_ones_own, ranks=1).values == ((1, False, 4),)


def test_an_unknown_collective_is_refused() -> None:
    from pipeconform.wrapper_tools import counted

    with pytest.raises(UsageError, match="unknown collective 'all_to_all'; there are all_gather, all_reduce"):
        counted("all_to_all").__enter__()
