"""Finds out what an operation carries: which stage's input, output, or gradient of one, of which forward.

Nothing in a message says so, and nothing is added. A tensor is recognised by its memory: what is
sent lies where an output of a stage lies, or a gradient of its input; and what was received later becomes a
stage's input, or the gradient of its output in its backward. One of the two may be a part of the other:
messages have headers, and large tensors are sent in pieces. If an engine copies on the way (into a flat buffer, to
another dtype), this rank cannot tell what it sends.

Gradients are seen by hooks on nodes of autograd's graph, on the way into the output's node and into or behind the
input's; tensors, parameters and the graph stay unchanged. A watched storage is held weakly: its memory
can be freed, and its address is not reused while it could be mistaken.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef

from pipeconform.observe.traffic.records import Cargo

__all__ = ["CargoFinder"]


class _Memory(NamedTuple):
    """A storage, and which bytes of it."""

    storage: int
    begin: int
    end: int
    dense: bool

    def touches(self, other: _Memory) -> bool:
        """Whether the two are the same, or one is a part of the other; unknown if there are gaps inside."""
        if self == other:
            return True
        if self.storage != other.storage or not (self.dense and other.dense):
            return False
        return (self.begin <= other.begin and other.end <= self.end) or (
            other.begin <= self.begin and self.end <= other.end
        )


class CargoFinder:
    """Knows what passed through this rank's stages since the step began; stages and traffic report to it."""

    def __init__(self) -> None:
        self.found: dict[int, Cargo] = {}
        """By number of the operation."""
        # by storage first: a long step has many messages, of which few lie in one storage
        self._leaving: dict[int, dict[_Memory, Cargo]] = {}
        self._arrived: dict[int, dict[_Memory, int]] = {}
        self._kept: dict[int, Any] = {}  # weak references of torch's, which are untyped
        self._leaves: list[tuple[weakref.ref[Tensor], Cargo]] = []

    def begin(self) -> None:
        """A step begins: earlier tensors no longer leave, but what was received may still be used."""
        self._leaving.clear()
        self._leaves.clear()
        alive = {s for s, places in self._arrived.items() if places and not self._kept[s].expired()}
        self._arrived = {storage: places for storage, places in self._arrived.items() if storage in alive}
        self._kept = {storage: kept for storage, kept in self._kept.items() if storage in alive}

    # Called by the traffic recorder.

    def sent(self, number: int, tensor: Tensor) -> None:
        """Operation `number` sends `tensor`."""
        memory = _memory_of(tensor)
        if memory is None:
            return
        leaving = self._leaving.get(memory.storage, {})
        cargo = leaving.get(memory) or self._gradient_at(memory)
        if cargo is None and leaving:
            several = {known for place, known in leaving.items() if place.touches(memory)}
            cargo = several.pop() if len(several) == 1 else None
        if cargo is not None:
            self.found[number] = cargo

    def received(self, number: int, tensor: Tensor) -> None:
        """Operation `number` receives into `tensor`."""
        memory = self._keep(tensor)
        if memory is None:
            return
        storage = memory.storage  # its earlier contents are overwritten
        if storage in self._leaving:
            self._leaving[storage] = _beside(self._leaving[storage], memory)
        self._arrived[storage] = {**_beside(self._arrived.get(storage, {}), memory), memory: number}

    # Called by the stages.

    def passed(self, stage: int, forward: int, inputs: Sequence[Any], output: Any) -> None:
        """A forward of `stage` has ended; it was number `forward` of all that the rank ran in this step."""
        if torch._C._current_graph_task_id() != -1:
            return  # a recomputation: its tensors go nowhere
        cargo = functools.partial(Cargo, stage=stage, forward=forward)
        for value in tensors_of(inputs):
            self._used(value, cargo("input"))
            self._watch_input(value, cargo("input gradient"))
        for value in tensors_of(output):
            self._leaves_with(value, cargo("output"))
            if value.grad_fn is not None:
                used = functools.partial(self._used_by_backward, value.output_nr, cargo("output gradient"))
                value.grad_fn.register_prehook(used)

    def _used(self, tensor: Tensor, cargo: Cargo) -> None:
        """A stage got `tensor`: the latest message in its memory carried this."""
        memory = _memory_of(tensor)
        arrived = {} if memory is None else self._arrived.get(memory.storage, {})
        for place in [one for one in arrived if memory is not None and one.touches(memory)]:
            self.found[arrived.pop(place)] = cargo

    def _used_by_backward(self, position: int, cargo: Cargo, gradients: Sequence[Tensor | None]) -> None:
        gradient = gradients[position]
        if gradient is not None:
            self._used(gradient, cargo)

    def _watch_input(self, tensor: Tensor, cargo: Cargo) -> None:
        if not tensor.requires_grad or not torch.is_grad_enabled():
            return
        if tensor.grad_fn is not None:
            passed = functools.partial(self._passed_back, tensor.output_nr, cargo)
            tensor.grad_fn.register_prehook(passed)
            return
        # A leaf's gradient is stored or added up behind all hooks that could see it: it is looked up then.
        leaf = weakref.ref(tensor)
        self._leaves.append((leaf, cargo))
        node: Any = get_gradient_edge(tensor).node
        node.register_hook(functools.partial(self._accumulated, leaf, cargo))

    def _passed_back(self, position: int, cargo: Cargo, gradients: Sequence[Tensor | None]) -> None:
        gradient = gradients[position]
        if gradient is not None:
            self._leaves_with(gradient, cargo)

    def _accumulated(self, leaf: weakref.ref[Tensor], cargo: Cargo, *_: object) -> None:
        tensor = leaf()
        if tensor is not None and tensor.grad is not None:
            self._leaves_with(tensor.grad, cargo)

    def _gradient_at(self, memory: _Memory) -> Cargo | None:
        """The input whose gradient lies there, if the engine put it there without autograd."""
        for leaf, cargo in reversed(self._leaves):
            tensor = leaf()
            if tensor is not None and tensor.grad is not None and _memory_of(tensor.grad) == memory:
                return cargo
        return None

    def _leaves_with(self, tensor: Tensor, cargo: Cargo) -> None:
        memory = self._keep(tensor)
        if memory is not None:
            self._leaving.setdefault(memory.storage, {})[memory] = cargo

    def _keep(self, tensor: Tensor) -> _Memory | None:
        memory = _memory_of(tensor)
        if memory is not None and memory.storage not in self._kept:
            reference: Any = StorageWeakRef
            self._kept[memory.storage] = reference(tensor.untyped_storage())
        return memory


_T = TypeVar("_T")


def _beside(places: dict[_Memory, _T], memory: _Memory) -> dict[_Memory, _T]:
    """The `places` that do not overlap `memory`."""
    return {place: known for place, known in places.items() if not place.touches(memory)}


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)


def _memory_of(tensor: Tensor) -> _Memory | None:
    """Where a tensor lies; None if that identifies nothing."""
    count = tensor.numel()
    if tensor.layout is not torch.strided or tensor.is_meta or not count:
        return None
    size = tensor.element_size()
    begin = int(tensor.storage_offset()) * size
    span = count
    if not tensor.is_contiguous():
        span = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return _Memory(tensor.untyped_storage()._cdata, begin, begin + int(span) * size, span == count)
