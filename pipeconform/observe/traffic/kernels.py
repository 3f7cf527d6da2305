"""Seeing every operation of every process group, whatever API it came by.

All of torch.distributed goes through the operators ``c10d::…``: its functions, batches of `P2POp`, methods of a
process group called from Python, functional collectives and DDP's reducer, which call them from C++. A kernel of
ours stands before torch's own kernel of each operator and calls it. (A Python subclass of ProcessGroup, the other
way, is passed over by every C++ caller of the methods that torch's trampoline leaves out: reduce, gather, scatter,
all-to-all and any-source receives, torch 2.13; and the default group cannot be exchanged while it is in use.)

Waiting is no operator: ``Work.wait`` and ``Work.is_completed`` are wrapped on the class, which keeps the objects
what they are, and so is ``_c10d_functional::wait_tensor``, which waits in C++. Who takes a collective's future
(DDP's reducer does) waits unseen.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

__all__ = ["Call", "Listener", "listening"]

_KEYS = ("CPU", "CUDA")


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of an operator ``c10d::name``."""

    name: str
    arguments: tuple[Any, ...]
    group: dist.ProcessGroup
    peer: int
    """The other end or the root as a rank of the group, −1 where there is none."""
    tag: int
    run: Callable[[tuple[Any, ...]], Any]
    """Torch's own kernel, on these or other arguments."""


class Listener(Protocol):
    """Who is told."""

    def called(self, call: Call) -> Any:
        """Run the call and return what it returns."""

    def batched(self, run: Callable[[], Any]) -> Any:
        """Run something whose calls are one batch."""

    def waited(self, work: dist.Work, wait: Callable[[], Any]) -> Any:
        """Run a wait for a work object, and return what it returns."""

    def polled(self, work: dist.Work, complete: bool) -> None:
        """Somebody asked whether a work object is complete."""

    def waited_for_tensor(self, tensor: torch.Tensor, wait: Callable[[], Any]) -> Any:
        """Run a wait for whatever works on a tensor's memory, and return what it returns."""


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` about everything, in all threads of this process, until the end."""
    with ExitStack() as stack:
        stack.enter_context(_kernels(listener))
        stack.enter_context(_waits(listener))
        yield


@contextmanager
def _kernels(listener: Listener) -> Iterator[None]:
    library: Any = torch.library.Library  # untyped
    c10d, functional = library("c10d", "IMPL"), library("_c10d_functional", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a kernel is overridden, which is what we want
            for name, places in _operators():
                for key, kernel in _kernels_of(f"c10d::{name}"):
                    ours = _call_kernel(listener, name, places, kernel)
                    c10d.impl(name, ours, key, with_keyset=True, allow_override=True)
            for name, make in (("wait_tensor", _wait_kernel), ("batch_p2p_ops", _batch_kernel)):
                for key, kernel in _kernels_of(f"_c10d_functional::{name}"):
                    ours = make(listener, kernel)
                    functional.impl(name, ours, key, with_keyset=True, allow_override=True)
        yield
    finally:
        c10d._destroy()
        functional._destroy()


@functools.cache
def _operators() -> tuple[tuple[str, dict[str, int]], ...]:
    """Every ``c10d`` operator on a group, with the positions of its arguments by name."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::")]
    found = []
    for name in sorted(names):
        schema = torch._C._get_schema(name, "")
        places = {argument.name: place for place, argument in enumerate(schema.arguments)}
        if "process_group" in places:
            found.append((name.partition("::")[2], places))
    return tuple(found)


def _kernels_of(operator: str) -> Iterator[tuple[str, Any]]:
    for key in _KEYS:
        try:
            yield key, torch.library.get_kernel(operator, key)
        except RuntimeError:  # this build of torch has none for the device
            continue


def _call_kernel(listener: Listener, name: str, places: dict[str, int], kernel: Any) -> Callable[..., Any]:
    group = places["process_group"]
    peer = next((places[one] for one in ("dst", "src", "root_rank") if one in places), None)
    tag = places.get("tag")

    def called(keys: Any, *arguments: Any) -> Any:
        return listener.called(
            Call(
                name=name,
                arguments=arguments,
                group=dist.ProcessGroup.unbox(arguments[group]),
                peer=-1 if peer is None else arguments[peer],
                tag=0 if tag is None else arguments[tag],
                run=lambda given: kernel.call_boxed(keys, *given),
            )
        )

    return called


def _wait_kernel(listener: Listener, kernel: Any) -> Callable[..., Any]:
    def waited(keys: Any, tensor: torch.Tensor) -> Any:
        return listener.waited_for_tensor(tensor, lambda: kernel.call_boxed(keys, tensor))

    return waited


def _batch_kernel(listener: Listener, kernel: Any) -> Callable[..., Any]:
    def batched(keys: Any, *arguments: Any) -> Any:
        return listener.batched(lambda: kernel.call_boxed(keys, *arguments))

    return batched


@contextmanager
def _waits(listener: Listener) -> Iterator[None]:
    wait, is_completed = dist.Work.wait, dist.Work.is_completed

    def waited(work: dist.Work, *arguments: Any, **named: Any) -> Any:
        return listener.waited(work, lambda: wait(work, *arguments, **named))

    def polled(work: dist.Work) -> bool:
        complete = is_completed(work)
        listener.polled(work, complete)
        return complete

    work_class: Any = dist.Work
    work_class.wait, work_class.is_completed = waited, polled
    try:
        yield
    finally:
        work_class.wait, work_class.is_completed = wait, is_completed


def tensors_in(arguments: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Every tensor among the arguments of an operator, in order."""
    for one in arguments:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, list | tuple):
            yield from tensors_in(one)
