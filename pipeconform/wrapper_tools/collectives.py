"""Replacing a collective, or an event of a sharded wrapper, on all ranks at the same time, to delay, count or assert.

::

    with counted("all_reduce") as count:
        wrapper(x).sum().backward()
    assert count.calls == 1

A dispatch mode intercepts torch's operators ``c10d::…``, so it does not matter who calls them: `torch.distributed`, a
process group's method, or DDP's reducer from C++. Only the calling thread is watched, with the backward passes that it
runs on the CPU.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, get_args

import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import _runtime_utils
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.utils._python_dispatch import TorchDispatchMode

from pipeconform.errors import HarnessError, UsageError

__all__ = ["Call", "Collective", "Count", "Place", "checked", "counted", "delayed", "replaced"]

Collective = Literal[
    "all_gather", "all_reduce", "broadcast", "reduce_scatter", "post_backward", "reshard", "unshard"
]

_OPERATORS = {
    "all_gather": (
        "allgather_",
        "allgather_coalesced_",
        "allgather_into_tensor_coalesced_",
        "_allgather_base_",
    ),
    "all_reduce": ("allreduce_", "allreduce_coalesced_"),
    "broadcast": ("broadcast_",),
    "reduce_scatter": ("reduce_scatter_", "reduce_scatter_tensor_coalesced_", "_reduce_scatter_base_"),
}


@dataclass(frozen=True)
class Place:
    """A function or method that is looked up by its name whenever it is called: ``getattr(owner, name)``."""

    owner: Any
    """A class or a module."""
    name: str


# torch has no public names for these events; its own tests replace the same functions
_PLACES = {
    "unshard": (Place(FSDPParamGroup, "unshard"), Place(_runtime_utils, "_unshard")),
    "reshard": (Place(FSDPParamGroup, "reshard"), Place(_runtime_utils, "_reshard")),
    "post_backward": (
        Place(FSDPParamGroup, "post_backward"),
        Place(_runtime_utils, "_post_backward_hook"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a replaced function."""

    name: str
    """The operator of torch, such as ``allreduce_``, or the function's name."""
    tensors: tuple[Tensor, ...]
    """All tensors among its arguments, in order; for a collective, outputs come before inputs."""
    run: Callable[[], Any]
    """Make the original call; its result has to be returned."""


@contextmanager
def replaced(
    what: Collective | Place, new: Callable[[Call], Any], *, patience: float = 10.0
) -> Iterator[None]:
    """Call ``new(call)`` instead of a collective; ``return call.run()`` makes the original call.

    ``unshard``, ``reshard`` and ``post_backward`` are those of `fully_shard` and `FullyShardedDataParallel`; for
    another wrapper give the `Place`. All ranks of the default group enter and leave together, so that no rank's
    collective is replaced while another's is not. If the body raises, the original is restored at once, without
    waiting for the other ranks; they get an error that names this rank after `patience` seconds.

    Raises:
        UsageError: there is no such collective.
        HarnessError: a rank did not enter or leave within `patience` seconds.
    """
    if not isinstance(what, Place) and what not in get_args(Collective):
        raise UsageError(f"unknown collective {what!r}; there are {', '.join(get_args(Collective))}")
    text = what.name if isinstance(what, Place) else what
    meeting = _Meeting(text, patience)
    meeting.come_to("enter")
    with ExitStack() as stack:
        if not isinstance(what, Place) and what in _OPERATORS:
            stack.enter_context(_Operators(frozenset(_OPERATORS[what]), new))
        for place in (what,) if isinstance(what, Place) else _PLACES.get(what, ()):
            stack.enter_context(_exchanged(place, new))
        yield
    meeting.come_to("leave")


def delayed(
    what: Collective | Place, seconds: float, *, ranks: Collection[int] | None = None, patience: float = 10.0
) -> AbstractContextManager[None]:
    """Sleep before every call, on the given ranks of the default group (None: on all).

    Raises:
        UsageError, HarnessError: see `replaced`.
    """
    sleeps = ranks is None or dist.get_rank() in ranks

    def late(call: Call) -> Any:
        if sleeps:
            time.sleep(seconds)
        return call.run()

    return replaced(what, late, patience=patience)


@dataclass
class Count:
    """The calls so far."""

    calls: int = 0
    elements: int = 0
    """The number of bytes of all tensors in all calls."""
    names: list[str] = field(default_factory=list)


@contextmanager
def counted(what: Collective | Place, *, patience: float = 10.0) -> Iterator[Count]:
    """Count the calls on this rank.

    Raises:
        UsageError, HarnessError: see `replaced`.
    """
    count = Count()

    def noted(call: Call) -> Any:
        count.calls += 1
        count.elements += sum(tensor.numel() for tensor in call.tensors)
        count.names.append(call.name)
        return call.run()

    with replaced(what, noted, patience=patience):
        yield count


def checked(
    what: Collective | Place, check: Callable[[Call], object], *, patience: float = 10.0
) -> AbstractContextManager[None]:
    """Call ``check(call)`` before every call; the collective raises what `check` raises.

    Raises:
        UsageError, HarnessError: see `replaced`.
    """

    def asserted(call: Call) -> Any:
        check(call)
        return call.run()

    return replaced(what, asserted, patience=patience)


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's subclass hook is untyped
    def __init__(self, names: frozenset[str], new: Callable[[Call], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names, self._new = names, new

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func.namespace != "c10d" or func._opname not in self._names:
            return func(*args, **named)
        tensors = tuple(_tensors_in([*args, *named.values()]))
        return self._new(Call(name=func._opname, tensors=tensors, run=lambda: func(*args, **named)))


@contextmanager
def _exchanged(place: Place, new: Callable[[Call], Any]) -> Iterator[None]:
    owner, name = place.owner, place.name
    own = name in vars(owner)
    old = getattr(owner, name)

    def called(*args: Any, **named: Any) -> Any:
        tensors = tuple(_tensors_in([*args, *named.values()]))
        return new(Call(name=name, tensors=tensors, run=lambda: old(*args, **named)))

    setattr(owner, name, called)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, old)
        else:  # it was inherited
            delattr(owner, name)


def _tensors_in(values: Collection[Any]) -> Iterator[Tensor]:
    for one in values:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from _tensors_in(one)


class _Meeting:
    """Ranks of the default group that enter and leave something together.

    They meet through the group's store: gloo's barrier leaves the group unusable if it times out, and never ends while
    other ranks are in another collective.
    """

    def __init__(self, text: str, patience: float) -> None:
        self._text, self._patience, self._key = text, patience, ""
        if dist.is_initialized() and dist.get_world_size() > 1:
            self._key = f"pipeconform/replaced/{next(_numbers(dist.group.WORLD))}"

    def come_to(self, what: str) -> None:
        """Wait for all ranks."""
        if not self._key:
            return
        store, rank = _store(), dist.get_rank()
        keys = [f"{self._key}/{what}/{one}" for one in range(dist.get_world_size())]
        store.set(keys[rank], "")
        try:
            store.wait(keys, timedelta(seconds=self._patience))
        except RuntimeError as error:
            absent = ", ".join(str(one) for one, key in enumerate(keys) if not store.check([key]))
            raise HarnessError(
                f"rank {rank}: rank {absent} did not {what} replaced({self._text}) within {self._patience} s; "
                f"it failed earlier, or does not call it"
            ) from error


@functools.lru_cache(maxsize=4)
def _numbers(group: dist.ProcessGroup) -> Iterator[int]:
    """The numbers of a group's meetings, counted alike on every rank."""
    return itertools.count()


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
