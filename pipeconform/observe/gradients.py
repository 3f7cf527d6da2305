"""The gradients at a stage's edges: what arrives at its outputs and what leaves at its inputs.

This runs only if a failing case is executed once more to find the first wrong value; no verdict depends on
that execution. Inside a stage's forward, while gradients are on,

* every input that needs a gradient is replaced by an *alias* of the same memory, whose node in the graph sees the
  sum of what the stage sends back to the input. The alias is no view: a module may write into it;
* the node that made an output gets a hook, which sees the gradient that arrives at it. No node is added there, so the
  engine gets the same tensors as otherwise.

Engines that take gradients with ``torch.autograd.grad`` pass both all the same. A node that a split backward calls
directly, or a second time, reports nothing, or the same gradient again; see `pipeconform.judge.localise.localisation`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeconform.observe.array import Array
from pipeconform.observe.forwards import Forwards
from pipeconform.observe.observation import Flow

__all__ = ["Gradients", "tensors_of"]

Read = Callable[[Tensor], tuple[Array, Array | None]]


def _value(tensor: Tensor) -> tuple[Array, Array | None]:
    return Array.of(tensor), None


class Gradients(Forwards):
    """The gradients that passed since the last `take`, as a `pipeconform.case.build.modules.Watcher`.

    `read` reads a value, and its bound if one is known.
    """

    def __init__(self, read: Read = _value) -> None:
        super().__init__()
        self._read = read
        self._flow: list[Flow] = []

    @contextmanager
    def forward(self, module: nn.Module, stage: int, inputs: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """Surround one forward of `stage`; the module must work on the inputs that this yields."""
        with self.numbered():
            yield tuple(self._alias(stage, position, value) for position, value in enumerate(inputs))

    def passed(self, stage: int, output: Any) -> None:
        """Record the `output` of the forward that runs in this thread."""
        for position, tensor in enumerate(tensors_of(output)):
            if tensor.grad_fn is not None:
                note = functools.partial(self._note, stage, self.call, "output gradient", position)
                tensor.grad_fn.register_prehook(functools.partial(_one_of, note, tensor.output_nr))

    def take(self) -> tuple[Flow, ...]:
        """Return what was recorded, and start again; calls keep counting."""
        taken, self._flow = tuple(self._flow), []
        return taken

    def _alias(self, stage: int, position: int, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.requires_grad or not torch.is_grad_enabled():
            return value
        alias: Tensor = _Alias.apply(value)  # type: ignore[no-untyped-call]
        note = functools.partial(self._note, stage, self.call, "input gradient", position)
        assert alias.grad_fn is not None
        alias.grad_fn.register_prehook(functools.partial(_one_of, note, 0))
        return alias

    def _note(
        self,
        stage: int,
        call: int,
        kind: Literal["input gradient", "output gradient"],
        position: int,
        gradient: Tensor,
    ) -> None:
        value, bound = self._read(gradient)
        self._flow.append(Flow(stage, call, kind, position, value, bound))


class _Alias(torch.autograd.Function):
    """The identity; no view, so that a module may write into it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def _one_of(note: Callable[[Tensor], None], number: int, gradients: tuple[Tensor | None, ...]) -> None:
    """Note the gradient of one of a node's outputs, if there is one; the gradients stay unchanged."""
    gradient = gradients[number]
    if gradient is not None:
        note(gradient)


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors of a value with its containers, in the order of `Structure.leaves`."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_of(item)
