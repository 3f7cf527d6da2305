"""Records what a rank computed, in order: forwards, input gradients and weight gradients of its stages.

The stage module is the only place that every engine must pass through, forwards and backwards. While a
forward runs with gradients on, the stage works on *aliases*: views, made for this one call, of the inputs
and parameters that need a gradient. The alias's node in the graph then stands between every use of a
tensor and the tensor itself, and a hook on it sees the gradient pass::

    input ── alias ──┐
                     ├── the stage's operations ── output
    weight ─ alias ──┘

* The gradient of an input passes: the *input part* (I) of this call's backward runs.
* The gradient of a parameter passes: the *weight part* (W) runs. Engines that split the backward may take
  it with ``torch.autograd.grad`` from the middle of the graph, or call nodes directly, so that no
  accumulation hook ever fires; it passes the alias all the same. And an alias belongs to one call,
  while a parameter belongs to all microbatches.
* Both pass in one graph task (one call of ``backward``): a full backward.

A view changes no value and no dtype, and the hooks are on nodes that nothing else refers to: the tensors,
parameters and modules of the engine and of the model get nothing that they did not have before. The
graph is longer by one node per tensor, so the timeline is observed only if it is judged.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeconform.observe.forwards import Forwards
from pipeconform.observe.memory import Memory
from pipeconform.observe.observation import Event, Held, Kept

__all__ = ["Timeline"]


class Timeline(Forwards):
    """The events of one rank since the last `take`, in the order in which they happened.

    With a `memory`, it also records what is kept of forwards whose backward has run, whenever another forward begins.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        super().__init__()
        self._memory = memory
        self._events: list[Event] = []

    @contextmanager
    def forward(self, module: nn.Module, stage: int, inputs: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """Surround one forward of `stage`; the module must work on the inputs that this yields."""
        with self.numbered() as call:
            seen, swapped, parts = inputs, [], ""
            if torch.is_grad_enabled():
                passed = functools.partial(self._pass, "I", stage, call)
                seen = tuple(_alias(value, passed) for value in inputs)
                swapped = list(_aliased_parameters(module, functools.partial(self._pass, "W", stage, call)))
                parts = "I" if any(a is not b for a, b in zip(inputs, seen, strict=True)) else ""
                parts += "W" if swapped else ""
            if self._memory is not None:
                self._memory.note(self._done(), before=call)
            self._note("F", stage, call, parts)
            try:
                for holder, name, alias, _ in swapped:
                    holder[name] = alias
                with nullcontext() if self._memory is None else self._memory.saving(call):
                    yield seen
            finally:
                for holder, name, _, parameter in swapped:
                    holder[name] = parameter

    @property
    def count(self) -> int:
        """How many events there have been since the last `take`."""
        return len(self._events)

    @property
    def last(self) -> Event | None:
        """The latest event since the last `take`."""
        return next(reversed(self._events), None)

    def take(self) -> tuple[Event, ...]:
        """Return what was recorded, and start again; calls keep counting."""
        taken, self._events = tuple(self._events), []
        return taken

    def held(self) -> tuple[Held, ...] | None:
        """Return what was kept, at the end of a step; None without a memory."""
        return None if self._memory is None else self._memory.end()

    def passed(self, stage: int, inputs: tuple[Any, ...], output: Any) -> None:
        """A forward has ended; with a memory, keep weak references to its inputs and output."""
        if self._memory is not None:
            self._memory.passed(stage, inputs, output)

    def kept(self) -> Kept | None:
        """Return what was alive in a step and after it; None without a memory."""
        return None if self._memory is None else self._memory.kept()

    def _done(self) -> list[int]:
        """The forwards whose backward has begun in all parts, and thus ended: this thread runs a forward again."""
        due: dict[int, set[str]] = {e.call: set(e.parts) for e in self._events if e.parts}
        for event in self._events:
            if event.kind != "F" and event.call in due:
                due[event.call].discard(event.kind)
        return [call for call, parts in due.items() if not parts]

    def _pass(self, kind: Literal["I", "W"], stage: int, call: int, gradients: object) -> None:
        """Record that a gradient passes an alias; of equal passages in a row, the first is enough."""
        last = self._events[-1] if self._events else None
        task = _task()
        if last is None or (last.kind, last.call, last.task) != (kind, call, task):
            self._note(kind, stage, call)

    def _note(self, kind: Literal["F", "I", "W"], stage: int, call: int, parts: str = "") -> None:
        self._events.append(Event(kind, stage, call, _task(), time.monotonic(), parts))


def _task() -> int:
    """The number of the backward that runs in this thread, −1 outside of any."""
    found: int = torch._C._current_graph_task_id()
    return found


def _alias(value: Any, passed: Any) -> Any:
    """A view of a tensor that needs a gradient, watched; anything else as it is."""
    if not isinstance(value, Tensor) or not value.requires_grad:
        return value
    alias = value.view_as(value)
    assert alias.grad_fn is not None
    alias.grad_fn.register_prehook(passed)
    return alias


def _aliased_parameters(
    module: nn.Module, passed: Any
) -> Iterator[tuple[dict[str, Any], str, Tensor, nn.Parameter]]:
    """For every trainable parameter: the module that holds it, its name there, its alias, and itself.

    A parameter held in two places has one alias.
    """
    made: dict[int, Tensor] = {}
    for part in module.modules():
        holder: dict[str, Any] = part._parameters
        for name, parameter in holder.items():
            if parameter is None or not parameter.requires_grad:
                continue
            if id(parameter) not in made:
                made[id(parameter)] = _alias(parameter, passed)
            yield holder, name, made[id(parameter)], parameter
