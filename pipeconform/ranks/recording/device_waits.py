"""Sees the calls that block a thread until a device has done what it was given, and what the device waits for.

On a device the wait for an operation returns at once: it lets a stream wait. The thread stands still later, where it
reads a value or synchronises, and nothing there says for which operation. So the operations are kept in the order in
which a stream was made to wait for them, each with an event behind its wait.

Calls that wait for the current stream or for the whole device are seen: ``synchronize`` of ``torch.accelerator`` and of
the device's module, the methods ``cpu``, ``to`` and ``tolist``, and the operator behind ``item``. Waits for one event
or for another stream are not: what their end depends on is unknown, so that a hang there is explained, but not proved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch

__all__ = ["Holder", "Ordered", "holding"]

_HERE = "BackendSelect"
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
_T = TypeVar("_T")


class Holder(Protocol):
    """Receives every call that waits for a device."""

    def held(self, run: Callable[[], Any], *, stream: int | None) -> Any:
        """Run something that waits for a stream by its number, None for all of them; return what it returns."""


class _Entry(NamedTuple, Generic[_T]):
    one: _T
    stream: int
    passed: torch.Event


class Ordered(Generic[_T]):
    """What streams of a device were made to wait for, in that order; any thread may read it."""

    def __init__(self) -> None:
        self._entries: list[_Entry[_T]] = []
        self._held: list[tuple[int | None, float]] = []

    def add(self, ones: Sequence[_T], *, device: torch.device) -> None:
        """The current stream of `device` waits for these, the first of which is named first if it blocks."""
        stream = torch.accelerator.current_stream(device)
        passed = torch.Event(device=device)
        passed.record(stream)
        self._entries = [*self._left(), *(_Entry(one, stream.stream_id, passed) for one in ones)]

    def clear(self) -> None:
        """Forget everything."""
        self._entries = []

    def hold(self, run: Callable[[], Any], *, stream: int | None) -> Any:
        """Run something that waits for a stream, or for all; return what it returns."""
        if not self._entries:
            return run()
        held = (stream, time.monotonic())
        self._held.append(held)
        try:
            return run()
        finally:
            self._held.remove(held)
            self._entries = self._left()

    def blocking(self) -> tuple[_T, float] | None:
        """What a thread waits for now, and since when; None if no thread waits for a device."""
        for stream, since in list(self._held):
            for entry in list(self._entries):
                if stream in (None, entry.stream) and not entry.passed.query():
                    return entry.one, since
        return None

    def waiting(self) -> tuple[_T, ...]:
        """What streams have not come past, whether a thread waits for them or not."""
        return tuple(entry.one for entry in self._left())

    def _left(self) -> list[_Entry[_T]]:
        return [entry for entry in list(self._entries) if not entry.passed.query()]


@contextmanager
def holding(holder: Holder) -> Iterator[None]:
    """Pass the calls of every thread of this process that wait for its device to `holder`; nothing without a device."""
    device = torch.accelerator.current_accelerator()
    module: Any = None if device is None else torch.get_device_module(device)
    if module is None or not getattr(module, "is_initialized", lambda: True)():
        yield
        return
    with ExitStack() as stack:
        for owner in {id(one): one for one in (torch.accelerator, module)}.values():
            if hasattr(owner, "synchronize"):
                stack.enter_context(_instead(owner, "synchronize", _synchronising(holder, owner.synchronize)))
        # methods, and not the operator below: a kernel in Python gets a number where torch has wrapped one in a tensor
        stack.enter_context(_instead(torch.Tensor, "to", _converting(holder)))
        stack.enter_context(_instead(torch.Tensor, "cpu", _leaving(holder, "cpu")))
        stack.enter_context(_instead(torch.Tensor, "tolist", _leaving(holder, "tolist")))
        stack.enter_context(_reading(holder))
        yield


@contextmanager
def _instead(owner: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Let a class or a module have another method or function within the context."""
    before = vars(owner).get(name)
    setattr(owner, name, method)
    try:
        yield
    finally:
        if before is None:  # it has it from another class
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _synchronising(holder: Holder, right: Callable[..., Any]) -> Callable[..., Any]:
    def synchronize(*arguments: Any, **named: Any) -> Any:
        return holder.held(lambda: right(*arguments, **named), stream=None)

    return synchronize


def _converting(holder: Holder) -> Callable[..., Any]:
    right = torch.Tensor.to

    def to(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if tensor.is_cpu or _target(arguments, named) != "cpu":
            return right(tensor, *arguments, **named)
        return holder.held(lambda: right(tensor, *arguments, **named), stream=_stream(tensor))

    return to


def _target(arguments: Sequence[Any], named: Mapping[str, Any]) -> str:
    """The type of the device that a call of ``to`` names; empty if none."""
    given = named.get("device", named.get("other", arguments[0] if arguments else None))
    if isinstance(given, torch.Tensor):
        return given.device.type
    if isinstance(given, str | torch.device):
        return torch.device(given).type
    return ""


def _leaving(holder: Holder, name: str) -> Callable[..., Any]:
    right = getattr(torch.Tensor, name)

    def leave(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if tensor.is_cpu:
            return right(tensor, *arguments, **named)
        return holder.held(lambda: right(tensor, *arguments, **named), stream=_stream(tensor))

    return leave


@contextmanager
def _reading(holder: Holder) -> Iterator[None]:
    """Values are read in many ways (``item``, ``float``, ``if``), all of which come to one operator."""
    library: Any = torch.library.Library  # untyped
    aten, operator = library("aten", "IMPL"), torch.ops.aten._local_scalar_dense.default

    def read(keys: Any, tensor: torch.Tensor | float) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor  # a number that torch has wrapped
        if tensor.is_cpu or tensor.is_meta:
            return operator.redispatch(keys & _BELOW, tensor)
        return holder.held(lambda: operator.redispatch(keys & _BELOW, tensor), stream=_stream(tensor))

    try:
        aten.impl("_local_scalar_dense", read, _HERE, with_keyset=True)
        yield
    finally:
        aten._destroy()


def _stream(tensor: torch.Tensor) -> int:
    if tensor.is_meta or tensor.device.type == "cpu":
        return -1
    return int(torch.accelerator.current_stream(tensor.device).stream_id)
