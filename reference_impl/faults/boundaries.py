"""Faults of boundaries: tensors of unusual shapes, tensors passed on or ignored, and unusual gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..containers import leaves_of, map_leaves
from ..link import Failure, Link
from ..stage import Stage
from .fault import breaks


class _ReshapingStage(Stage):
    """Takes its inputs in another shape, and gives their gradients back in the right one."""

    @staticmethod
    def reshaped(leaf: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(
        self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], *, differentiate: bool, boundary: bool
    ) -> Any:
        self._shapes = [leaf.shape for leaf in leaves_of(inputs)]
        if self.index:
            inputs = map_leaves(
                lambda leaf: self.reshaped(leaf.detach()).requires_grad_(leaf.requires_grad), inputs
            )
        return super().forward(microbatch, inputs, kwargs, differentiate=differentiate, boundary=boundary)

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        found = super().backward(microbatch, gradients)
        pairs = zip(found, self._shapes, strict=True)
        return [None if gradient is None else gradient.reshape(shape) for gradient, shape in pairs]


@breaks("FWD-8")
class ScalarsLifted(_ReshapingStage):
    """A 0-d tensor arrives as a vector of one element.

    A 0-d tensor is received into a buffer of one element, and stays a vector.
    """

    @staticmethod
    def reshaped(leaf: Tensor) -> Tensor:
        return leaf if leaf.ndim else leaf.reshape(1)


@breaks("FWD-8")
class HighDimensionsFolded(_ReshapingStage):
    """Tensors of more than three dimensions are folded.

    Tensors of more than three dimensions arrive with the leading ones folded into one.
    """

    @staticmethod
    def reshaped(leaf: Tensor) -> Tensor:
        return leaf if leaf.ndim <= 3 else leaf.flatten(0, leaf.ndim - 3)


@breaks("FWD-10")
class PassedOnForgotten(Stage):
    """The gradient of a tensor that a stage passes on is not added to that of its own use."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        outputs = self._in_flight[microbatch].outputs
        kept = [
            None if type(output.grad_fn).__name__ == "_EntryBackward" else gradient
            for output, gradient in zip(outputs, gradients, strict=True)
        ]
        return super().backward(microbatch, kept)


@breaks("FWD-12", status="error", source="https://github.com/pytorch/pytorch/issues/153484")
class GradientDemanded(Stage):
    """An output without a gradient is an error.

    Every output that could have a gradient must have one.
    """

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        for position, output in enumerate(self._in_flight[microbatch].outputs):
            if output.requires_grad and gradients[position] is None:
                raise ValueError(f"no gradient came back for output {position}")
        return super().backward(microbatch, gradients)


@breaks("FWD-12")
class FirstDecides(Stage):
    """If the first output gets no gradient, the backward ends."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        if gradients[0] is None:
            gradients = [None] * len(gradients)
        return super().backward(microbatch, gradients)


@breaks("FWD-21")
class Float8Confused(Link):
    """One type of float8 is taken for the other.

    All types of eight bits share one buffer type; the values are read with another exponent.
    """

    def receive(self, *, source: int) -> Any:
        value = super().receive(source=source)
        return value if isinstance(value, Failure) else map_leaves(_as_other_float8, value)


@breaks("TRN-15", schedule="ZB-H1")
class GradientStridesForgotten(Stage):
    """A transposed gradient's memory is sent as if it were contiguous."""

    def backward_input(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        return [_as_it_lies(g) for g in super().backward_input(microbatch, gradients)]


@breaks("TRN-15", schedule="ZB-H1", source="https://github.com/NVIDIA-NeMo/Automodel/pull/3318")
class ExpandedGradientCut(Stage):
    """Only one number of an expanded gradient is sent.

    The rest of the buffer stays zero.
    """

    def backward_input(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        return [_only_what_is_stored(g) for g in super().backward_input(microbatch, gradients)]


def _as_other_float8(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.dtype == torch.float8_e4m3fn:
        return leaf.view(torch.float8_e5m2).float().to(torch.float8_e4m3fn)
    return leaf


def _as_it_lies(gradient: Tensor | None) -> Tensor | None:
    if gradient is None or gradient.is_contiguous() or 0 in gradient.stride():
        return gradient
    order = sorted(range(gradient.ndim), key=gradient.stride, reverse=True)
    return gradient.permute(order).reshape(gradient.shape)


def _only_what_is_stored(gradient: Tensor | None) -> Tensor | None:
    if gradient is None or not gradient.numel() or any(gradient.stride()):
        return gradient
    found = torch.zeros(gradient.shape, dtype=gradient.dtype, device=gradient.device)
    found.view(-1)[0] = gradient.flatten()[0]
    return found
