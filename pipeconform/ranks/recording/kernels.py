"""Sees every operation of every process group, whichever API issued it.

All of torch.distributed goes through the operators ``c10d::…``: its functions, batches of `P2POp`, methods of a
process group called from Python, functional collectives and DDP's reducer, which call them from C++. Our kernel
stands before torch's own kernel of each operator, at the dispatch key that every call of every thread passes on any
device (BackendSelect), and dispatches on. It must not call torch's kernel object instead: that holds
Python's lock, and gloo's worker wants the lock while it holds the queue that the caller waits for. (The alternative, a
Python subclass of ProcessGroup, is bypassed by every C++ caller of the methods that torch's trampoline leaves out:
reduce, gather, scatter, all-to-all and any-source receives, torch 2.13; and the default group cannot be replaced
while it is in use.)

Waiting is no operator: the methods of ``Work`` are wrapped on the class, which leaves the objects unchanged, and so are
those of the futures that ``Work.get_future`` returns, and the operators ``_c10d_functional::wait_tensor`` and
``wait_tensors``, which wait in C++. A wait in C++ for a collective's future (as in DDP's reducer) is not seen.

Coalescing is no operator either. Between ``ProcessGroup._start_coalescing`` and ``_end_coalescing`` (NCCL's
``batch_isend_irecv``) operations have no work objects, or some that say nothing; the last call returns one for all.

Releases of torch differ in their operators. What this release has is found here; `unseen` names what it has in a form
that cannot be wrapped.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
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

    def coalescing(self, group: dist.ProcessGroup) -> None:
        """The backend of `group` coalesces what it is given from now on."""

    def coalesced(self, group: dist.ProcessGroup, work: dist.Work | None) -> None:
        """What `group` was given since `coalescing` has begun; `work` is its end, None if it has ended."""

    def waited(self, work: dist.Work, wait: Callable[[], Any]) -> Any:
        """Run a wait for a work object, and return what it returns."""

    def synchronised(self, work: dist.Work, wait: Callable[[], Any]) -> Any:
        """Run something that lets a device's stream wait for a work object, and return what it returns."""

    def polled(self, work: dist.Work, complete: bool) -> None:
        """`Work.is_completed` was called, and returned `complete`."""

    def waited_for_tensors(self, tensors: Sequence[torch.Tensor], wait: Callable[[], Any]) -> Any:
        """Run a wait for the operations on these tensors' memory, and return what it returns."""


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Pass every call of every thread of this process to `listener` within the context."""
    with ExitStack() as stack:
        stack.enter_context(_kernels(listener))
        for work_class in _work_classes(dist.Work):
            stack.enter_context(_replaced(work_class, _waits(listener, work_class)))
        stack.enter_context(_replaced(dist.ProcessGroup, _coalescing(listener)))
        stack.enter_context(_replaced(torch._C.Future, _futures(listener)))
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
def _replaced(where: Any, methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Have a class other methods within the context."""
    before = {name: vars(where)[name] for name in methods}
    for name, method in methods.items():
        setattr(where, name, method)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(where, name, method)


def _work_classes(base: type[Any]) -> Iterator[type[Any]]:
    """Work objects' classes: a backend's own may have other methods."""
    yield base
    for one in base.__subclasses__():
        yield from _work_classes(one)


def _waits(listener: Listener, of: type[Any]) -> Mapping[str, Callable[..., Any]]:
    """Methods of work objects that a class has itself."""

    def waiting(wait: Callable[..., Any]) -> Callable[..., Any]:
        # `examiner` looks for a frame of this name
        def waited(work: dist.Work, *arguments: Any, **named: Any) -> Any:
            return listener.waited(work, lambda: wait(work, *arguments, **named))

        return waited

    def polling(is_completed: Callable[..., bool]) -> Callable[..., bool]:
        def polled(work: dist.Work) -> bool:
            complete = is_completed(work)
            listener.polled(work, complete)
            return complete

        return polled

    def promising(get_future: Callable[..., Any]) -> Callable[..., Any]:
        def promised(work: dist.Work) -> Any:
            future = get_future(work)
            _works_of_futures()[future] = work
            return future

        return promised

    def synchronising(method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda work: listener.synchronised(work, lambda: method(work))

    makers = {
        "wait": waiting,
        "is_completed": polling,
        "get_future": promising,
        "synchronize": synchronising,
        "block_current_stream": synchronising,
    }
    return {name: make(vars(of)[name]) for name, make in makers.items() if name in vars(of)}


def _coalescing(listener: Listener) -> Mapping[str, Callable[..., Any]]:
    """Methods of process groups that begin and end a batch."""
    group_class: Any = dist.ProcessGroup  # both methods are private
    start, end = group_class._start_coalescing, group_class._end_coalescing

    def started(group: dist.ProcessGroup, *arguments: Any) -> Any:
        result = start(group, *arguments)
        listener.coalescing(group)
        return result

    def ended(group: dist.ProcessGroup, *arguments: Any) -> Any:
        work = end(group, *arguments)
        listener.coalesced(group, work)
        return work

    return {"_start_coalescing": started, "_end_coalescing": ended}


def _futures(listener: Listener) -> Mapping[str, Callable[..., Any]]:
    """Methods of the futures that stand for a work object: what waits, and what passes the future on."""
    future_class: Any = torch._C.Future
    works = _works_of_futures()

    def waiting(method: Callable[..., Any]) -> Callable[..., Any]:
        def waited(future: Any, *arguments: Any) -> Any:
            work = works.get(future)
            if work is None:
                return method(future, *arguments)
            return listener.waited(work, lambda: method(future, *arguments))

        return waited

    def passing_on(method: Callable[..., Any]) -> Callable[..., Any]:
        def passed_on(future: Any, callback: Callable[[Any], Any]) -> Any:
            work = works.get(future)
            if work is None:
                return method(future, callback)

            def called(same: Any) -> Any:  # the same future in another Python object
                works[same] = work
                return callback(same)

            later = method(future, called)
            if later is not None:
                works[later] = work
            return later

        return passed_on

    return {
        **{name: waiting(getattr(future_class, name)) for name in ("wait", "value")},
        **{name: passing_on(getattr(future_class, name)) for name in ("then", "add_done_callback")},
    }


@functools.cache
def _works_of_futures() -> weakref.WeakKeyDictionary[Any, dist.Work]:
    """The work object that each future stands for."""
    return weakref.WeakKeyDictionary()


def tensors_in(arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Every tensor among the arguments of an operator, in order."""
    found: list[torch.Tensor] = []
    for one in arguments:
        if isinstance(one, torch.Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            found += tensors_in(one)
    return found
