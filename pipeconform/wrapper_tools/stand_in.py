"""A process group in a single process, for constructing wrappers as on many ranks.

All other ranks are assumed to have the same values as this one: a sum is a multiple of the value, a gather repeats it.
So shapes, padding and the division by the number of ranks are real; only the data is not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from pipeconform.errors import UsageError

__all__ = ["stand_in_group"]

_BACKEND = "pipeconform_stand_in"
_Base: Any = dist.ProcessGroup
_Work: Any = dist.Work


@contextmanager
def stand_in_group(*, rank: int = 0, ranks: int) -> Iterator[dist.ProcessGroup]:
    """Make this process rank `rank` of a default group of `ranks`; it is destroyed at the end.

    Groups made from it (`new_group`, `init_device_mesh`) work in the same way. Point-to-point operations are refused.

    Raises:
        UsageError: there is a default group already, or no such rank.
    """
    if dist.is_initialized():
        raise UsageError("stand_in_group: there is a default process group already; it cannot be replaced")
    if not 0 <= rank < ranks:
        raise UsageError(f"stand_in_group: rank {rank} of {ranks} ranks; it is from 0 to {ranks - 1}")
    _registered()
    store: Any = dist.HashStore()  # type: ignore[attr-defined]  # public, says its page
    dist.init_process_group(_BACKEND, rank=rank, world_size=ranks, store=store)
    try:
        group = dist.group.WORLD
        assert group is not None
        yield group
    finally:
        dist.destroy_process_group()


@functools.cache
def _registered() -> None:
    dist.Backend.register_backend(_BACKEND, _made, devices=["cpu"])


def _made(store: Any, rank: int, size: int, timeout: Any) -> dist.ProcessGroup:
    group: dist.ProcessGroup = _StandIn(rank, size)
    return group


class _Done(_Work):  # type: ignore[misc]  # torch's base is untyped here
    """An operation that has completed."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: Future[Any] = Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def get_future(self) -> Future[Any]:
        return self._future


class _StandIn(_Base):  # type: ignore[misc]  # torch's base is untyped here
    """A process group in which every other rank has the same values as this one."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._name = rank, size, ""

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name  # torch keeps the name in a C++ backend, which this group does not have

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return _BACKEND

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> _Done:
        for tensor in tensors:
            self._combine(tensor, opts)
        return _Done(list(tensors))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> _Done:
        return _Done(list(tensors))

    def barrier(self, opts: Any = None) -> _Done:
        return _Done([])

    def allgather(self, outputs: Any, inputs: Sequence[Tensor], opts: Any = None) -> _Done:
        for places, value in zip(outputs, inputs, strict=True):
            for place in places:
                place.detach().copy_(value)
        return _Done(outputs)

    def all_gather_single(self, output: Tensor, value: Tensor, opts: Any = None) -> _Done:
        for place in output.detach().view(-1).chunk(self._size):
            place.copy_(value.reshape(-1))
        return _Done([output])

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        for output, value in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, value)
        return _Done(outputs)

    def reduce_scatter(self, outputs: Sequence[Tensor], inputs: Any, opts: Any = None) -> _Done:
        for output, parts in zip(outputs, inputs, strict=True):
            output.detach().copy_(parts[self._rank])
            self._combine(output, opts)
        return _Done(list(outputs))

    def reduce_scatter_single(self, output: Tensor, value: Tensor, opts: Any = None) -> _Done:
        output.detach().view(-1).copy_(value.reshape(-1).chunk(self._size)[self._rank])
        self._combine(output, opts)
        return _Done([output])

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        for output, value in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, value, opts)
        return _Done(outputs)

    # what torch called these before 2.13
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def send(self, *arguments: Any) -> None:
        raise UsageError("a stand-in process group has no other rank to send to")

    def recv(self, *arguments: Any) -> None:
        raise UsageError("a stand-in process group has no other rank to receive from")

    def _combine(self, tensor: Tensor, opts: Any) -> None:
        """Reduce equal values of all ranks, in place."""
        operation = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        with torch.no_grad():
            if operation == dist.ReduceOp.SUM:
                tensor.mul_(self._size)
            elif operation == dist.ReduceOp.PRODUCT:
                tensor.pow_(self._size)
            elif operation == dist.ReduceOp.BXOR:
                tensor.mul_(self._size % 2)
