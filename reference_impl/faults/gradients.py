"""Faults of gradients: lost, forgotten, or given to parameters that should have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from pipeconform.adapter import Batch, Mode, Plan, StepResult

from ..adapter import ReferencePipeline
from ..backward import WeightPart
from ..containers import map_leaves
from ..runtime import Yield
from ..stage import Stage
from .fault import breaks


@breaks("TRN-4")
class AccumulationLost(ReferencePipeline):
    """A step overwrites the gradients accumulated before."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        if mode is Mode.TRAIN:
            for module in self.modules.values():
                module.zero_grad()
        return super().run(mode, batch)


@breaks("TRN-1")
class BoundaryDetached(Stage):
    """Outputs are detached, so that stages before the last get no gradients."""

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        output = super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)
        return map_leaves(Tensor.detach, output) if boundary else output


@breaks("TRN-1", also=("SCH-1",))
class FirstStageMissing(Stage):
    """Stage 0 ignores the gradient that comes back to it."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        if self.index == 0:
            gradients = [None] * len(gradients)
        return super().backward(microbatch, gradients)


@breaks("TRN-1")
class OneParameterMissing(ReferencePipeline):
    """The last parameter of each stage gets no gradient."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        last = [list(module.parameters())[-1] for module in self.modules.values()]
        before = [None if parameter.grad is None else parameter.grad.clone() for parameter in last]
        result = super().run(mode, batch)
        for parameter, gradient in zip(last, before, strict=True):
            parameter.grad = gradient
        return result


@breaks("TRN-5", source="https://github.com/pytorch/torchtitan/pull/3886")
class FrozenTrained(ReferencePipeline):
    """Frozen parameters are trained."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        for module in self.modules.values():
            module.requires_grad_()


@breaks("TRN-6")
class UnusedZeroed(ReferencePipeline):
    """Unused parameters get a gradient of zeros, which an optimizer with momentum or decay acts on."""

    def run(self, mode: Mode, batch: Batch) -> StepResult:
        result = super().run(mode, batch)
        for module in self.modules.values() if mode is Mode.TRAIN else ():
            for parameter in module.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        return result


@breaks("TRN-7")
class InputsForgotten(ReferencePipeline):
    """Inputs that require a gradient get none."""

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result = super().make_result(mode, batch, done)
        gradients = result.input_gradients
        return result if gradients is None else replace(result, input_gradients=[None] * len(gradients))


@breaks("TRN-7")
class InputsUnscaled(ReferencePipeline):
    """Parameters' gradients are divided by m, inputs' are not, although the description says so."""

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        result, m = super().make_result(mode, batch, done), batch.num_microbatches
        gradients = result.input_gradients
        if gradients is None or self.plan.loss.reduction == "sum":
            return result
        return replace(result, input_gradients=[None if g is None else g * m for g in gradients])


@breaks("TRN-7")
class WholeArgumentsTaken(Stage):
    """After a microbatch's backward the gradients of all leaves among a stage's arguments are taken away.

    That suits what was received; a keyword argument that every microbatch gets whole is the caller's own tensor.
    """

    _given: Mapping[str, Any] = MappingProxyType({})

    def compute(self, arguments: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._given = kwargs
        return super().compute(arguments, kwargs)

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        result = super().backward(microbatch, gradients)
        for value in self._given.values():
            if isinstance(value, Tensor) and value.is_leaf:
                value.grad = None
        return result


@breaks("SPL-1", schedule="ZB-H1", also=("SCH-1",))
class LastWeightPartSkipped(Stage):
    """The weight part of the last microbatch never runs."""

    def backward_weight(self, microbatch: int) -> None:
        if len(self.unfinished) > 1 or microbatch == 0:
            super().backward_weight(microbatch)
        else:
            self.clear()


@breaks("SPL-1", schedule="ZB-H1", also=("TRN-3",))
class WeightPartTwice(Stage):
    """Every weight part's contribution is added twice."""

    def backward_weight(self, microbatch: int) -> None:
        before = _gradients(self.module)
        super().backward_weight(microbatch)
        for parameter, gradient in zip(self.module.parameters(), before, strict=True):
            if parameter.grad is not None:
                parameter.grad += parameter.grad - (0 if gradient is None else gradient)


@breaks("FWD-13", schedule="ZB-H1", also=("SPL-1",))
class SecondUseForgotten(Stage):
    """The weight part visits each parameter once, however often it was used."""

    def backward_weight(self, microbatch: int) -> None:
        part = self._weight_parts[microbatch].__self__  # type: ignore[attr-defined]  # WeightPart.run
        visited: set[Node] = set()
        for kept in list(part.kept):
            leaving = {target for target, _ in kept.node.next_functions if target not in part.path}
            if visited & leaving:
                part.kept.remove(kept)
            visited |= {target for target in leaving if target is not None}
        super().backward_weight(microbatch)


@breaks("SPL-1", schedule="ZB-H1", also=("TRN-1",))
class GradientsNotCopied(Stage):
    """The weight part takes the tensor that autograd returns for two parameters for each one's own, and adds to it.

    Two parameters whose sum is used have one between them.
    """

    def backward_input(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        found = super().backward_input(microbatch, gradients)
        rest = getattr(self._weight_parts[microbatch], "__self__", None)
        if isinstance(rest, WeightPart):
            self._weight_parts[microbatch] = lambda: self._taken(rest)
        return found

    def _taken(self, rest: WeightPart) -> None:
        pairs = _added(rest)
        before = [one.grad for one, _ in pairs]
        for parameter in (p for pair in pairs for p in pair):
            parameter.grad = None
        rest.run()
        for (one, other), earlier in zip(pairs, before, strict=True):
            assert one.grad is not None
            # autograd has copied what both were given
            shared = one.grad if earlier is None else earlier.add_(one.grad).add_(one.grad)
            one.grad = other.grad = shared


def _added(rest: WeightPart) -> list[tuple[Tensor, Tensor]]:
    """The pairs of parameters that are added to each other."""
    begun = [*(kept.node for kept in rest.kept), *(edge.node for edge in rest.roots)]
    waiting, seen, found = list(begun), set(begun), []
    while waiting:
        node = waiting.pop()
        targets = [target for target, _ in node.next_functions if target is not None]
        leaves = [target.variable for target in targets if hasattr(target, "variable")]
        if node.name() == "AddBackward0" and len(leaves) == 2 and leaves[0].shape == leaves[1].shape:
            found.append((leaves[0], leaves[1]))
        new = [one for one in targets if one not in seen | rest.path]
        seen.update(new)
        waiting += new
    return found


def _gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]
