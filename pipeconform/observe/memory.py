"""Records what a rank keeps alive for backwards: the tensors that autograd saved in each forward.

While a forward of a stage runs, everything that its operations save is put into a box of its own
(``torch.autograd.graph.saved_tensors_hooks``), and only a weak reference to the box is kept here. A box lives
exactly as long as the node of the graph that saved it keeps what it saved: until a backward releases it, or
until nothing refers to the graph any more. The number of a forward's boxes that are alive thus says what is
kept of it, independently of bytes, allocators and the process's size.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pipeconform.observe.holders import holder_of, holder_of_graph
from pipeconform.observe.observation import Held, Kept

__all__ = ["Memory"]


class _Box:
    """One saved tensor."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Memory:
    """The saved tensors of one rank, by the number of the forward that saved them."""

    def __init__(self) -> None:
        self._boxes: dict[int, list[weakref.ref[_Box]]] = {}
        self._held: list[Held] = []
        self._at_once = 0
        self._inputs: list[list[weakref.ref[Tensor]]] = []
        self._outputs: list[tuple[int, list[weakref.ref[Tensor]]]] = []
        self._holds_graph = ""

    @contextmanager
    def saving(self, call: int) -> Iterator[None]:
        """Surround forward number `call`."""
        boxes = self._boxes.setdefault(call, [])
        others = sum(self._alive(other) > 0 for other in self._boxes if other != call)
        self._at_once = max(self._at_once, others + 1)

        def pack(tensor: Tensor) -> _Box:
            box = _Box(tensor.detach())  # with its graph, a saved output would keep itself alive
            boxes.append(weakref.ref(box))
            return box

        def unpack(box: Any) -> Tensor:
            tensor: Tensor = box.tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield

    def note(self, done: Collection[int], *, before: int) -> None:
        """Record what is alive of the forwards in `done`, all of whose backward ran, before forward `before`."""
        if any(self._alive(call) for call in done):
            gc.collect()  # tensors that only a reference cycle keeps are not kept for a backward
        self._held += [Held(call, before, alive) for call in done if (alive := self._alive(call))]

    def passed(self, stage: int, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep weak references to what a forward got and what it returned."""
        if stage:
            self._inputs.append([weakref.ref(value) for value in inputs if isinstance(value, Tensor)])
        items = tuple(output.values()) if isinstance(output, Mapping) else output
        leaves = items if isinstance(items, tuple | list) else (items,)
        given = {id(value) for value in inputs}
        own = [leaf for leaf in leaves if isinstance(leaf, Tensor) and id(leaf) not in given]
        self._outputs.append((stage, [weakref.ref(leaf) for leaf in own]))

    def kept(self) -> Kept:
        """Return what was alive during a step and is at its end; start again."""
        gc.collect()
        outputs = [each for _, each in self._outputs]
        found = Kept(
            at_once=self._at_once,
            inputs=sum(_any_alive(each) for each in self._inputs),
            outputs=tuple(stage for stage, each in self._outputs if _any_alive(each)),
            holds_input=_holder_of_first(self._inputs),
            holds_output=_holder_of_first(outputs),
            holds_graph=self._holds_graph,
        )
        self._at_once, self._inputs, self._outputs, self._holds_graph = 0, [], [], ""
        return found

    def end(self) -> tuple[Held, ...]:
        """Record what is alive of all forwards, at the end of a step, and return everything recorded."""
        self.note(list(self._boxes), before=-1)
        boxes = (one for call in self._boxes for box in self._boxes[call] if (one := box()) is not None)
        first = next(boxes, None)
        del boxes  # it would hold the box, too
        self._holds_graph = "" if first is None else holder_of_graph(first.tensor)
        taken, self._held, self._boxes = tuple(self._held), [], {}
        return taken

    def _alive(self, call: int) -> int:
        return sum(box() is not None for box in self._boxes.get(call, ()))


def _holder_of_first(references: Iterable[Iterable[weakref.ref[Tensor]]]) -> str:
    alive = (tensor for each in references for one in each if (tensor := one()) is not None)
    first = next(alive, None)
    del alive  # it would hold the tensor, too
    return "" if first is None else holder_of(first)


def _any_alive(references: Iterable[weakref.ref[Tensor]]) -> bool:
    return any(reference() is not None for reference in references)
