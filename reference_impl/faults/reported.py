"""Defects of real engines that users reported, reproduced: in stages, gradients and losses.

Each label links to its report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from pipeconform.adapter import Batch, Mode, StepResult

from ..adapter import ReferencePipeline
from ..backward import WeightPart
from ..runtime import Work, Yield
from ..stage import Stage
from .fault import breaks


def _parameters_behind(node: Node, path: frozenset[Node]) -> set[Tensor]:
    """The parameters that edges of a node reach without the path."""
    waiting = [target for target, _ in node.next_functions if target is not None and target not in path]
    found, seen = set(), set(waiting)
    while waiting:
        target = waiting.pop()
        if hasattr(target, "variable"):
            found.add(target.variable)
        new = [one for one, _ in target.next_functions if one is not None and one not in seen | path]
        seen.update(new)
        waiting += new
    return found


class _ByParameterStage(Stage):
    """Computes weight gradients parameter by parameter, from all the nodes that lead to each."""

    def edges(self, node: Node, gradients: Sequence[Tensor | None]) -> list[tuple[GradientEdge, Tensor]]:
        """The edges at which the backward of a node begins again."""
        return [(GradientEdge(node, i), g) for i, g in enumerate(gradients) if g is not None]

    def backward_input(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        found = super().backward_input(microbatch, gradients)
        rest = getattr(self._weight_parts[microbatch], "__self__", None)
        if isinstance(rest, WeightPart):
            self._weight_parts[microbatch] = lambda: self._by_parameter(rest)
        return found

    def _by_parameter(self, rest: WeightPart) -> None:
        if rest.roots:
            torch.autograd.backward(rest.roots, rest.gradients)
        nodes = [kept for kept in rest.kept if kept.gradients is not None]
        behind = [_parameters_behind(kept.node, rest.path) for kept in nodes]
        for parameter in dict.fromkeys(one for several in behind for one in several):
            begin = [
                pair
                for kept, several in zip(nodes, behind, strict=True)
                if parameter in several
                for pair in self.edges(kept.node, kept.gradients or ())
            ]
            (gradient,) = torch.autograd.grad(
                [edge for edge, _ in begin], [parameter], [g for _, g in begin], retain_graph=True
            )
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


@breaks(
    "FWD-13", schedule="ZB-H1", source="https://github.com/pytorch/pytorch/issues/180952", also=("SPL-1",)
)
class SharedCountedTwice(ReferencePipeline):
    """A split backward counts a parameter's gradient twice if it is used twice on one path.

    The later place's gradient flows through the earlier one too.
    """

    stage_type = _ByParameterStage


@breaks("SPL-1", schedule="ZB-H1", source="https://github.com/pytorch/pytorch/issues/170277")
class OutputsSummed(_ByParameterStage):
    """A split backward adds up the gradients of a node's outputs and gives the sum to the first."""

    def edges(self, node: Node, gradients: Sequence[Tensor | None]) -> list[tuple[GradientEdge, Tensor]]:
        there = [gradient for gradient in gradients if gradient is not None]
        total = there[0]
        for gradient in there[1:]:
            total = total + gradient
        return [(GradientEdge(node, 0), total)]


@breaks(
    "TRN-1",
    schedule="GPipe",
    status="error",
    tells=r"microbatch \d",
    source="https://github.com/deepspeedai/DeepSpeed/issues/3900",
    also=("FWD-1",),
)
class LatestLossOnly(Stage):
    """One variable holds all microbatches' losses, so every backward begins at the last one's."""

    def end_in(self, microbatch: int, loss: Tensor) -> None:
        super().end_in(microbatch, loss)
        for saved in self._in_flight.values():
            saved.outputs = [loss]


class _StructuredStage(Stage):
    """Notes whether its module returned more than a tensor."""

    structured = False

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        output = super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)
        self.structured = not isinstance(output, Tensor)
        return output


@breaks("FWD-11", source="https://github.com/pytorch/PiPPy/pull/738")
class StructuredWithoutBackward(_StructuredStage):
    """A model that returns more than one value gets no gradients, because its loss is not found."""

    def end_in(self, microbatch: int, loss: Tensor) -> None:
        super().end_in(microbatch, loss.detach() if self.structured else loss)


@breaks(
    "FWD-11",
    status="error",
    tells=r"stage \d, microbatch \d",
    source="https://github.com/pytorch/PiPPy/issues/135",
)
class OutputsCounted(_StructuredStage):
    """The last stage must have as many gradients as outputs, but has only the loss's."""

    def end_in(self, microbatch: int, loss: Tensor) -> None:
        if self.structured:
            raise AssertionError("the output has other entries than its gradient")
        super().end_in(microbatch, loss)


@breaks(
    "FWD-12",
    status="error",
    tells=r"stage \d, microbatch \d",
    source="https://github.com/pytorch/pytorch/issues/152827",
)
class InputGradientDemanded(Stage):
    """An input without a gradient to send back is an error, even if it was not used."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        wanted = [leaf is not None for leaf in self._in_flight[microbatch].inputs]
        found = super().backward(microbatch, gradients)
        for position, (gradient, asked) in enumerate(zip(found, wanted, strict=True)):
            if self.index and asked and gradient is None:
                raise RuntimeError(f"input {position} has no gradient, but the stage before expects one")
        return found


@breaks(
    "FWD-5",
    status="error",
    tells=r"stage \d, microbatch \d",
    source="https://github.com/pytorch/PiPPy/pull/1029",
)
class NoGradientRefused(Stage):
    """An output that requires no gradient is an error, because the backward begins at every output."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        for output in self._in_flight[microbatch].outputs:
            if not output.requires_grad:
                raise RuntimeError("element 1 of tensors does not require grad and does not have a grad_fn")
        return super().backward(microbatch, gradients)


@breaks("TRN-1", source="https://github.com/pytorch/PiPPy/issues/945")
class ParametersForgotten(Stage):
    """The backward asks for the gradients of the inputs, and accumulates none in parameters."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        before = [(p, p.grad) for p in self.module.parameters()]
        for parameter, _ in before:
            parameter.grad = None
        found = super().backward(microbatch, gradients)
        for parameter, gradient in before:
            parameter.grad = gradient
        return found


@breaks("TRN-2", source="https://github.com/deepspeedai/DeepSpeed/issues/4661")
class LossesZero(ReferencePipeline):
    """The returned losses are zero."""

    def make_result(self, mode: Mode, batch: Batch, done: Yield) -> StepResult:
        zeros = {k: torch.zeros_like(loss) for k, loss in done.losses.items()}
        return super().make_result(mode, batch, replace(done, losses=zeros))


@breaks(
    "FWD-9",
    status="error",
    tells=r"stage \d, microbatch \d",
    source="https://github.com/pytorch/pytorch/pull/136416",
)
class KwargsForFirstOnly(ReferencePipeline):
    """Stages after the first get no keyword arguments."""

    def make_work(self, mode: Mode, batch: Batch) -> Work:
        work = super().make_work(mode, batch)
        return replace(work, kwargs={s: rows for s, rows in work.kwargs.items() if s == 0})


@breaks(
    "FWD-15",
    status="error",
    tells=r"stage \d, microbatch \d",
    source="https://github.com/pytorch/torchtitan/issues/3112",
)
class ObjectsInBackward(Stage):
    """Arguments that are no tensors break the backward."""

    objects = False

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        self.objects = any(not isinstance(value, Tensor) for value in kwargs.values())
        return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        if self.objects:
            raise AttributeError("'bool' object has no attribute 'requires_grad'")
        return super().backward(microbatch, gradients)
