"""Threads as ranks: one of them runs at a time, and hands on where it waits in a collective.

torch keeps one world of process groups per process and one state of random numbers. Both are exchanged whenever another
thread goes on, which happens inside collectives only; so code between two collectives sees what it would see in a
process of its own, and runs are repeatable. When nobody can go on, that is a hang, and it is known at once.

What every rank has of its own: default group and groups, torch's, numpy's and Python's random numbers; and what torch
keeps per thread: grad mode, dispatch modes, autograd's queues, the registry of groups. What all share: everything
else that a module or class remembers. A backend's own errors, `Store` and point-to-point operations are not modelled.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, distributed
from torch.futures import Future

from pipeconform.errors import HarnessError

__all__ = ["ThreadEnd", "on_threads"]

_BACKEND = "pipeconform_threads"
_Base: Any = dist.ProcessGroup
_WorkBase: Any = dist.Work
_c10d: Any = distributed.distributed_c10d
_isolate: Any = torch._C._distributed_c10d._set_thread_isolation_mode  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True)
class ThreadEnd:
    """What became of one rank: a value, an exception, or what it waits for and where."""

    value: Any = None
    error: BaseException | None = None
    waits: str = ""
    stack: str = ""


class _World:
    """What `torch.distributed` remembers of one rank's groups, under torch's own names."""

    def __init__(self) -> None:
        self.default_pg: Any = None
        self.pg_map: dict[Any, Any] = {}
        self.pg_names: dict[Any, str] = {}
        self.pg_group_ranks: dict[Any, dict[int, int]] = {}
        self.pg_backend_config: dict[Any, str] = {}
        self.group_count = 0
        self.tags_to_pg: dict[str, list[Any]] = {}
        self.pg_to_tag: dict[Any, str] = {}
        self.pg_coalesce_state: dict[Any, list[Any]] = {}
        self.comms: list[Any] = []


@dataclass
class _Slot:
    """One collective of a group, until all its ranks are there."""

    kind: str
    given: dict[int, Any] = field(default_factory=dict)
    members: list[int] = field(default_factory=list)


class _Crew:
    """The threads, and whose turn it is."""

    def __init__(self, function: Callable[[int], Any], size: int) -> None:
        self.size, self.function = size, function
        self.ends: dict[int, ThreadEnd] = {}
        self.waits: dict[int, str] = {}
        self._turns = [threading.Semaphore(0) for _ in range(size)]
        self._ready = deque(range(size))
        self._states: list[Any] = [(_World(), *_random_state()) for _ in range(size)]
        self._slots: dict[tuple[str, int], _Slot] = {}
        self._counts: dict[tuple[str, int], int] = {}
        self._over = threading.Event()
        self._store = dist.HashStore()
        self._threads = [
            threading.Thread(target=self._rank, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(size)
        ]

    def run(self) -> list[ThreadEnd]:
        """Until every rank has ended, or none can go on."""
        for thread in self._threads:
            thread.start()
        self._hand_on()
        self._over.wait()
        frames = sys._current_frames()
        for rank, thread in enumerate(self._threads):
            if rank not in self.ends:
                frame = frames.get(thread.ident or 0)
                stack = "".join(traceback.format_stack(frame)) if frame else ""
                self.ends[rank] = ThreadEnd(waits=self.waits.get(rank, "its turn"), stack=stack)
        return [self.ends[rank] for rank in range(self.size)]

    def _rank(self, rank: int) -> None:
        self._turns[rank].acquire()
        self._restore(rank)
        _HERE.crew, _HERE.rank = self, rank
        try:
            dist.init_process_group(_BACKEND, rank=rank, world_size=self.size, store=self._store)
            try:
                self.ends[rank] = ThreadEnd(value=self.function(rank))
            finally:
                dist.destroy_process_group()
        except BaseException as error:
            self.ends[rank] = ThreadEnd(error=error)
        self._hand_on()

    def meet(self, group: _ThreadGroup, kind: str, given: Any, work: Callable[[list[Any]], None]) -> None:
        """Take part in a collective; who comes last does the work for all."""
        name, place, me = group.key, group.rank(), _HERE.rank
        number = self._counts[name, me] = self._counts.get((name, me), 0) + 1
        slot = self._slots.setdefault((name, number), _Slot(kind))
        slot.given[place] = given
        if slot.kind != kind:
            self._wait(me, f"{kind}, where others are in {slot.kind}, of group {name}")
        if len(slot.given) < group.size():
            slot.members.append(me)
            self._wait(me, f"{kind} of group {name}, of which {len(slot.given)} of {group.size()} have come")
            return
        del self._slots[name, number]
        with torch.no_grad():
            work([slot.given[place] for place in range(group.size())])
        self._ready.extend(slot.members)

    def _wait(self, rank: int, why: str) -> None:
        self.waits[rank] = why
        self._states[rank] = (_c10d._world, *_random_state())
        self._hand_on()
        self._turns[rank].acquire()
        self._restore(rank)
        del self.waits[rank]

    def _hand_on(self) -> None:
        if self._ready:
            self._turns[self._ready.popleft()].release()
        else:
            self._over.set()  # all have ended, or all that have not wait for each other

    def _restore(self, rank: int) -> None:
        _c10d._world, own, arrays, python = self._states[rank]
        torch.set_rng_state(own)
        np.random.set_state(arrays)
        random.setstate(python)


class _Here(threading.local):
    crew: _Crew
    rank: int


_HERE = _Here()


def _random_state() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def on_threads(function: Callable[[int], Any], *, ranks: int) -> list[ThreadEnd]:
    """Call ``function(rank)`` on threads of this process that have a default process group of their own.

    Where a rank is stuck its thread cannot be ended: the process is to be replaced.

    Raises:
        HarnessError: this process has a default group already.
    """
    if dist.is_initialized():
        raise HarnessError("threads as ranks need a process without a default process group")
    _registered()
    before, multithreaded = _c10d._world, torch._C._is_multithreading_enabled()
    _isolate(True)
    torch._C._set_multithreading_enabled(False)
    try:
        return _Crew(function, ranks).run()
    finally:
        torch._C._set_multithreading_enabled(multithreaded)
        _isolate(False)
        _c10d._world = before


@functools.cache
def _registered() -> None:
    dist.Backend.register_backend(_BACKEND, _made, devices=["cpu"])


def _made(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return _ThreadGroup(rank, size)


class _Done(_WorkBase):  # type: ignore[misc]  # torch's base is untyped here
    """A collective that is over when the call returns."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: Future[Any] = Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Future[Any]:
        return self._future


class _ThreadGroup(_Base):  # type: ignore[misc]  # likewise
    """The collectives that data-parallel wrappers use."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self.key = rank, size, ""

    @property
    def group_name(self) -> str:
        return self.key

    def _set_group_name(self, name: str) -> None:
        self.key = name

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return _BACKEND

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def _meet(self, kind: str, given: Any, work: Callable[[list[Any]], None], result: Any) -> _Done:
        _HERE.crew.meet(self, kind, given, work)
        return _Done(result)

    def allreduce(self, tensors: Sequence[Tensor], opts: Any = None) -> _Done:
        def work(given: list[Any]) -> None:
            for alike in zip(*given, strict=True):
                total = _reduced(alike, opts)
                for tensor in alike:
                    tensor.detach().copy_(total)

        return self._meet("all_reduce", list(tensors), work, list(tensors))

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Sequence[Tensor], opts: Any = None) -> _Done:
        def work(given: list[Any]) -> None:
            for alike in zip(*given, strict=True):
                for tensor in alike:
                    tensor.detach().copy_(alike[opts.rootRank])

        return self._meet("broadcast", list(tensors), work, list(tensors))

    def barrier(self, opts: Any = None) -> _Done:
        return self._meet("barrier", None, lambda given: None, [])

    def allgather(self, outputs: Any, inputs: Sequence[Tensor], opts: Any = None) -> _Done:
        def work(given: list[Any]) -> None:
            for places, _ in given:
                for row, several in enumerate(places):
                    for place, (_, values) in zip(several, given, strict=True):
                        place.detach().copy_(values[row])

        return self._meet("all_gather", (outputs, inputs), work, outputs)

    def all_gather_single(self, output: Tensor, value: Tensor, opts: Any = None) -> _Done:
        places = list(output.detach().view(-1).chunk(self._size))
        return self.allgather([places], [value.reshape(-1)])

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        for output, value in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, value)
        return _Done(outputs)

    def reduce_scatter(self, outputs: Sequence[Tensor], inputs: Any, opts: Any = None) -> _Done:
        def work(given: list[Any]) -> None:
            for rank, (places, _) in enumerate(given):
                for row, place in enumerate(places):
                    place.detach().copy_(_reduced([parts[row][rank] for _, parts in given], opts))

        return self._meet("reduce_scatter", (list(outputs), inputs), work, list(outputs))

    def reduce_scatter_single(self, output: Tensor, value: Tensor, opts: Any = None) -> _Done:
        parts = list(value.reshape(-1).chunk(self._size))
        return self.reduce_scatter([output.detach().view(-1)], [parts], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        for output, value in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, value, opts)
        return _Done(outputs)


def _reduced(tensors: Sequence[Tensor], opts: Any) -> Tensor:
    """In the order of the ranks."""
    operation = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
    for one, combine in (
        (dist.ReduceOp.SUM, torch.add),
        (dist.ReduceOp.AVG, torch.add),
        (dist.ReduceOp.MAX, torch.maximum),
        (dist.ReduceOp.MIN, torch.minimum),
        (dist.ReduceOp.PRODUCT, torch.mul),
    ):
        if operation == one:
            total = functools.reduce(combine, tensors[1:], tensors[0].detach().clone())
            return total / len(tensors) if one == dist.ReduceOp.AVG else total
    raise HarnessError(f"threads as ranks have no reduction {operation}")
