"""Sees every operation of every process group, whichever API issued it.

All of torch.distributed goes through the operators ``c10d::…``: its functions, batches of `P2POp`, methods of a
process group called from Python, functional collectives and DDP's reducer, which call them from C++. Our kernel
stands before torch's own kernel of each operator, at the dispatch key that every call of every thread passes on any
device (BackendSelect), and dispatches on. It must not call torch's kernel object instead: that holds
Python's lock, and gloo's worker wants the lock while it holds the queue that the caller waits for. (The alternative, a
Python subclass of ProcessGroup, is bypassed by every C++ caller of the methods that torch's trampoline leaves out:
reduce, gather, scatter, all-to-all and any-source receives, torch 2.13; and the default group cannot be replaced
while it is in use.)

Waiting is no operator: ``Work.wait`` and ``Work.is_completed`` are wrapped on the class, which leaves the objects
unchanged, and so are the operators ``_c10d_functional::wait_tensor`` and ``wait_tensors``, which wait in C++. A wait
for a collective's future (as in DDP's reducer) is not seen.

Releases of torch differ in their operators. What this release has is found here; `unseen` names what it has in a form
that cannot be wrapped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist

__all__ = ["Call", "Listener", "listening", "unseen"]

_HERE = "BackendSelect"
_GROUP = "process_group"
_LEAST = frozenset({"send", "recv_", "recv_any_source_", "allreduce_", "broadcast_", "barrier"})
"""Operators that every release has; one that is missing has another name."""
_WAITS = {"wait_tensor": "Tensor", "wait_tensors": "List[Tensor]"}
"""The operators that wait, with the type of their only argument."""
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)


class Call:
    """A call of an operator ``c10d::name``.

    `peer` is the other end or the root as a rank of the group, −1 where there is none.
    """

    __slots__ = ("_keys", "_operator", "arguments", "group", "name", "peer", "tag")

    # one for every operation of a step: by position, and no dataclass, which is slower to make by a microsecond
    def __init__(
        self,
        name: str,
        arguments: tuple[Any, ...],
        group: dist.ProcessGroup,
        peer: int,
        tag: int,
        operator: Callable[..., Any],
        keys: Any,
    ) -> None:
        self.name, self.arguments, self.group = name, arguments, group
        self.peer, self.tag, self._operator, self._keys = peer, tag, operator, keys

    def run(self, arguments: tuple[Any, ...]) -> Any:
        """Run the operator on these or other arguments, as it would have run; releases Python's lock meanwhile."""
        return self._operator(self._keys & _BELOW, *arguments)


class Listener(Protocol):
    """Receives every call before it runs."""

    def called(self, call: Call) -> Any:
        """Run the call and return what it returns."""

    def batched(self, run: Callable[[], Any]) -> Any:
        """Run something whose calls form one batch."""

    def waited(self, work: dist.Work, wait: Callable[[], Any]) -> Any:
        """Run a wait for a work object, and return what it returns."""

    def polled(self, work: dist.Work, complete: bool) -> None:
        """`Work.is_completed` was called, and returned `complete`."""

    def waited_for_tensors(self, tensors: Sequence[torch.Tensor], wait: Callable[[], Any]) -> Any:
        """Run a wait for the operations on these tensors' memory, and return what it returns."""


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Pass every call of every thread of this process to `listener` within the context."""
    with ExitStack() as stack:
        stack.enter_context(_kernels(listener))
        stack.enter_context(_waits(listener))
        yield


@contextmanager
def _kernels(listener: Listener) -> Iterator[None]:
    library: Any = torch.library.Library  # untyped
    c10d, functional = library("c10d", "IMPL"), library("_c10d_functional", "IMPL")
    try:
        for name, places in _operators():
            c10d.impl(name, _call_kernel(listener, name, places), _HERE, with_keyset=True)
        makers = {**dict.fromkeys(_WAITS, _wait_kernel), "batch_p2p_ops": _batch_kernel}
        for name, make in makers.items():
            packet = getattr(torch.ops._c10d_functional, name, None)
            if packet is not None:  # nothing can call an operator that this release does not have
                functional.impl(name, make(listener, packet.default), _HERE, with_keyset=True)
        yield
    finally:
        c10d._destroy()
        functional._destroy()


@functools.cache
def _operators() -> tuple[tuple[str, dict[str, int]], ...]:
    """Every ``c10d`` operator on a group, with the positions of its arguments by name."""
    return tuple(
        (name, {argument: place for place, argument in enumerate(types)})
        for name, types in _schemas("c10d").items()
        if _GROUP in types and "." not in name
    )


@functools.cache
def unseen() -> tuple[str, ...]:
    """What this release of torch has for communication and waiting that cannot be listened to; usually nothing.

    A verdict about communication would blame an implementation for what was not seen, or pass it.
    """
    known = dict(_operators())
    missing = [f"c10d::{name} (missing)" for name in sorted(_LEAST - known.keys())]
    foreign = [
        f"c10d::{name}"
        for name, types in _schemas("c10d").items()
        if name not in known and any("ProcessGroup" in one for one in types.values())
    ]
    waits = [
        f"_c10d_functional::{name}"
        for name, types in _schemas("_c10d_functional").items()
        if name.startswith("wait") and (name not in _WAITS or list(types.values()) != [_WAITS[name]])
    ]
    return (*missing, *foreign, *waits)


@functools.cache
def _schemas(namespace: str) -> dict[str, dict[str, str]]:
    """The operators of a namespace, with the types of their arguments by name; overloads are operators of their own."""
    found = {}
    for whole in sorted(torch._C._dispatch_get_all_op_names()):
        if whole.startswith(f"{namespace}::"):
            name, _, overload = whole.partition(".")
            arguments = torch._C._get_schema(name, overload).arguments
            found[whole.partition("::")[2]] = {one.name: str(one.type) for one in arguments}
    return found


def _call_kernel(listener: Listener, name: str, places: dict[str, int]) -> Callable[..., Any]:
    group = places["process_group"]
    peer = next((places[one] for one in ("dst", "src", "root_rank") if one in places), None)
    tag = places.get("tag")
    operator = getattr(torch.ops.c10d, name).default.redispatch
    tell, unbox = listener.called, dist.ProcessGroup.unbox

    def called(keys: Any, *arguments: Any) -> Any:
        return tell(
            Call(
                name,
                arguments,
                unbox(arguments[group]),
                -1 if peer is None else arguments[peer],
                0 if tag is None else arguments[tag],
                operator,
                keys,
            )
        )

    return called


def _wait_kernel(listener: Listener, operator: Any) -> Callable[..., Any]:
    def waited(keys: Any, given: torch.Tensor | list[torch.Tensor]) -> Any:
        return listener.waited_for_tensors(
            tensors_in([given]), lambda: operator.redispatch(keys & _BELOW, given)
        )

    return waited


def _batch_kernel(listener: Listener, operator: Any) -> Callable[..., Any]:
    def batched(keys: Any, *arguments: Any) -> Any:
        return listener.batched(lambda: operator.redispatch(keys & _BELOW, *arguments))

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


def tensors_in(arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Every tensor among the arguments of an operator, in order."""
    found: list[torch.Tensor] = []
    for one in arguments:
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            found += tensors_in(one)
    return found
