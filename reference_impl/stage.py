"""One stage of the pipeline: a module, and what it must remember of every microbatch in flight.

For each microbatch k the stage is called in this order::

    forward(k, …)  then  backward(k, …)                                    full backward, or
                         backward_input(k, …)  then  backward_weight(k)    its two parts

A call in another order raises `OrderError`, which names the stage, the microbatch and what is due, and
changes nothing. The stage knows nothing of other stages, ranks or schedules (`operations` adds them). Its
arguments and results are trees of tensors; a tensor's ``requires_grad`` says whether its gradient
is wanted.

A stage may leave weight gradients to a function of its user's. Its *builder* is called after each backward and
returns the function to run for that microbatch: at W, or at once if the schedule has only full backwards.
Autograd then computes everything at I, because the function computes what would be left for W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from . import backward
from .containers import arguments_of, build, leaves_of, map_leaves, structure_of
from .errors import OrderError
from .metadata import BoundaryMeta, check_same, check_samples


class _Entry(torch.autograd.Function):
    """The identity between a stage's input (a leaf) and what its module sees (not a leaf).

    A module may change its input in place, which torch forbids for a leaf.
    """

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


@dataclass
class _InFlight:
    """What is remembered of one microbatch from its forward to its backward."""

    inputs: list[Tensor | None]
    """Per tensor of the input: the leaf that collects its gradient, or None if none is wanted."""
    outputs: list[Tensor]
    """Per tensor of the output: the tensor with its graph."""


class Stage:
    """A module and its microbatches in flight; `dw_builder` is explained in the module's docstring."""

    def __init__(
        self,
        module: nn.Module,
        *,
        index: int,
        batch_dim: int = 0,
        dw_builder: Callable[[], Callable[..., None]] | None = None,
        recompute: bool = False,
    ) -> None:
        self.module, self.index, self._recompute = module, index, recompute
        self._batch_dim, self._dw_builder = batch_dim, dw_builder
        self._frozen: tuple[BoundaryMeta, int | None] | None = None
        self._due: dict[int, str] = {}
        self._in_flight: dict[int, _InFlight] = {}
        self._weight_parts: dict[int, Callable[..., None]] = {}

    @contextmanager
    def step(self, *, training: bool) -> Iterator[None]:
        """Surround every step: eval mode and no gradients if asked, and nothing kept afterwards."""
        modes = [(module, module.training) for module in self.module.modules()]
        try:
            if not training:
                self.module.eval()
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            self.clear()

    def clear(self) -> None:
        """Forget every microbatch; the description of the boundary stays."""
        self._due.clear()
        self._in_flight.clear()
        self._weight_parts.clear()

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        """Run the module on one microbatch and return its output, with its graph.

        `inputs` is what the previous stage handed over: a tuple or list becomes positional arguments,
        anything else is one argument. ``boundary=True`` says that the output goes to another stage: it must
        then consist of tensors and look like the first one of all.

        Raises:
            OrderError: The forward of this microbatch ran already in this step.
            ValueError: The boundary changed.
            TypeError: Something that is no tensor would cross the boundary.
        """
        self.require("forward", microbatch, asked="forward")
        arguments = arguments_of(inputs)
        if not differentiate:
            with torch.no_grad():
                output = self.module(*map_leaves(_without_grad, arguments), **kwargs)
        else:
            collected = [_collector(value) for value in leaves_of(arguments)]
            seen = [
                value if leaf is None else _Entry.apply(leaf)  # type: ignore[no-untyped-call]
                for value, leaf in zip(map(_without_grad, leaves_of(arguments)), collected, strict=True)
            ]
            output = self.compute(build(structure_of(arguments), seen), kwargs)
        if boundary:
            self._check(BoundaryMeta.of(output), self._samples(arguments))
        if differentiate:
            tensors = [leaf for leaf in leaves_of(output) if isinstance(leaf, Tensor)]
            self._in_flight[microbatch] = _InFlight(inputs=collected, outputs=tensors)
        self._due[microbatch] = "backward" if differentiate else "nothing"
        return output

    def compute(self, arguments: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the module, and keep its activations or not."""
        return self.compute_twice(arguments, kwargs) if self._recompute else self.module(*arguments, **kwargs)

    def compute_twice(self, arguments: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the module without keeping its activations: the backward runs it again, with the same random numbers."""
        return checkpoint(self.module, *arguments, use_reentrant=False, **kwargs)

    def end_in(self, microbatch: int, loss: Tensor) -> None:
        """Let the backward of a microbatch of the last stage begin at its loss instead of its output."""
        self._in_flight[microbatch].outputs = [loss]

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Full backward: accumulate the parameters' gradients, return the inputs'.

        `gradients` has one entry per tensor of the output; None where nothing came back.

        Raises:
            OrderError: Its forward did not run, or its backward, or the input part of it, ran already.
            ValueError: A gradient does not fit its output.
        """
        found = self._all_the_way(microbatch, "backward", gradients)
        self._due[microbatch] = "nothing"
        if self._dw_builder is not None:
            self._dw_builder()()
        return found

    def backward_input(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Input part: return the inputs' gradients and leave the parameters to `backward_weight`.

        Raises:
            OrderError, ValueError: As for `backward`.
        """
        if self._dw_builder is not None:
            found = self._all_the_way(microbatch, "input part", gradients)
            self._weight_parts[microbatch] = self._dw_builder()
        else:
            saved, roots, starts = self._begin(microbatch, "input part", gradients)
            parts, rest = backward.input_part(roots, starts, inputs=_wanted(saved))
            found, self._weight_parts[microbatch] = _per_input(saved, parts), rest.run
        self._due[microbatch] = "weight part"
        return found

    def backward_weight(self, microbatch: int) -> None:
        """Weight part: accumulate the parameters' gradients; once, after the input part.

        Raises:
            OrderError: The input part did not run before it, or the weight part ran already.
        """
        self.require("weight part", microbatch, asked="weight part")
        self._due[microbatch] = "nothing"
        self._weight_parts.pop(microbatch)()

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Microbatches that still need a backward or a weight part."""
        return tuple(sorted({*self._in_flight, *self._weight_parts}))

    def left(self, num_microbatches: int) -> tuple[int, ...]:
        """Of so many microbatches, those for which something is still due, including the forward."""
        return tuple(k for k in range(num_microbatches) if self._due.get(k) != "nothing")

    def require(self, due: str, microbatch: int, *, asked: str) -> None:
        """Raise `OrderError` unless `due` ("forward", "backward" or "weight part") is what comes next."""
        expected = self._due.get(microbatch, "forward")
        if expected != due:
            raise OrderError(
                f"stage {self.index} was asked for the {asked} of microbatch {microbatch}, "
                f"of which {expected if expected == 'nothing' else f'the {expected}'} is due"
            )

    def _begin(
        self, microbatch: int, what: str, gradients: Sequence[Tensor | None]
    ) -> tuple[_InFlight, list[Tensor], list[Tensor]]:
        """Take a microbatch that is in flight; return the outputs at which its backward begins, and their gradients."""
        self.require("backward", microbatch, asked=what)
        roots, starts = _roots(self._in_flight[microbatch].outputs, gradients)
        return self._in_flight.pop(microbatch), roots, starts

    def _all_the_way(
        self, microbatch: int, what: str, gradients: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        saved, roots, starts = self._begin(microbatch, what, gradients)
        return _per_input(saved, backward.full(roots, starts, inputs=_wanted(saved)))

    def _check(self, found: BoundaryMeta, samples: int | None) -> None:
        if self._frozen is None:
            self._frozen = found, samples
        frozen, frozen_samples = self._frozen
        dim = self._batch_dim
        check_same(found, frozen=frozen, batch_dim=dim)
        check_samples(found, samples=samples, frozen=frozen, frozen_samples=frozen_samples, batch_dim=dim)

    def _samples(self, arguments: Sequence[Any]) -> int | None:
        """The number of samples in a microbatch, from the first argument; None if that has no batch dimension."""
        first = next((leaf for leaf in leaves_of(arguments) if isinstance(leaf, Tensor)), None)
        return None if first is None or first.ndim <= self._batch_dim else first.shape[self._batch_dim]


def hand_over(output: Any) -> Any:
    """A stage's output as the next stage gets it: the same values without the graph, flags kept."""
    return map_leaves(lambda leaf: leaf.detach().requires_grad_(leaf.requires_grad), output)


def _collector(value: Any) -> Tensor | None:
    if isinstance(value, Tensor) and value.requires_grad:
        return value.detach().requires_grad_()
    return None


def _without_grad(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _wanted(saved: _InFlight) -> list[Tensor]:
    return [leaf for leaf in saved.inputs if leaf is not None]


def _per_input(saved: _InFlight, found: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients of all inputs from those of the inputs that want one."""
    remaining = iter(found)
    return [None if leaf is None else next(remaining) for leaf in saved.inputs]


def _roots(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs at which the backward begins, and their gradients."""
    roots, starts = [], []
    for position, (output, gradient) in enumerate(zip(outputs, gradients, strict=True)):
        if gradient is None or not output.requires_grad:
            continue
        if gradient.shape != output.shape or gradient.dtype != output.dtype:
            raise ValueError(
                f"the gradient of output {position} is {gradient.dtype}{list(gradient.shape)}, "
                f"but the output is {output.dtype}{list(output.shape)}"
            )
        roots.append(output)
        starts.append(gradient)
    return roots, starts
