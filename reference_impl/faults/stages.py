"""Faults of stages: weight parts, deferred-weight functions, and calls that are not due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..adapter import ReferencePipeline
from ..stage import Stage
from .fault import breaks


@breaks("SPL-2", schedule="ZB-H1")
class WholeAmongParts(Stage):
    """While weight parts wait, a whole backward is taken for an input part, and its weight part never runs."""

    def left(self, num_microbatches: int) -> tuple[int, ...]:
        return ()

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        if self._weight_parts:
            return self.backward_input(microbatch, gradients)
        return super().backward(microbatch, gradients)


class _HoardingStage(Stage):
    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self.hoard: list[Any] = []

    def backward_weight(self, microbatch: int) -> None:
        self.hoard.append(self._weight_parts.get(microbatch))
        super().backward_weight(microbatch)


@breaks("SPL-2", schedule="ZB-H1")
class GraphsHoarded(ReferencePipeline):
    """Weight parts that have run are kept forever, and every graph with them."""

    stage_type = _HoardingStage


@breaks("SPL-5", schedule="ZB-H1", source="https://github.com/pytorch/pytorch/issues/136766")
class WeightPartsKept(_HoardingStage):
    """Weight parts that have run are kept until the step ends, so that memory grows with m."""

    def clear(self) -> None:
        super().clear()
        self.hoard.clear()


@breaks("FWD-28", tells="gradient")
class OutputsOverwritten(Stage):
    """The memory of an output is used for something else before the backward, unless it is a view or an input."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        found = self._in_flight.get(microbatch)
        if found is not None:
            given = {one.untyped_storage().data_ptr() for one in found.inputs if type(one) is Tensor}
            for output in found.outputs:
                own = type(output) is Tensor and output._base is None and output.ndim
                if own and output.untyped_storage().data_ptr() not in given:
                    output.data.zero_()  # behind autograd's back, which would notice it otherwise
        return super().backward(microbatch, gradients)


@breaks("SPL-3")
class DeferredForgotten(Stage):
    """Whole backwards do not call deferred-weight functions."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        builder, self._dw_builder = self._dw_builder, None
        try:
            return super().backward(microbatch, gradients)
        finally:
            self._dw_builder = builder


@breaks("SPL-3", schedule="ZB-H1")
class DeferredTwice(Stage):
    """A deferred-weight function runs at the input part and again at the weight part."""

    def backward_input(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        found = super().backward_input(microbatch, gradients)
        if self._dw_builder is not None:
            self._weight_parts[microbatch]()
        return found


@breaks("SPL-4", schedule="ZB-H1", tells=r"was asked for the weight part .* and did it; expected: an error")
class NothingToDo(Stage):
    """A weight part that is not due is ignored instead of refused."""

    def backward_weight(self, microbatch: int) -> None:
        if microbatch in self._weight_parts:
            super().backward_weight(microbatch)


@breaks("SPL-6", schedule="ZB-H1", tells=r"and said only '\d+'; expected: words that name the microbatch")
class BareKeys(Stage):
    """The error about a call that is not due is a bare key."""

    def backward_weight(self, microbatch: int) -> None:
        if microbatch not in self._weight_parts:
            raise KeyError(microbatch)
        super().backward_weight(microbatch)


@breaks("SPL-1", schedule="InterleavedZeroBubble")
class IndependentDropped(Stage):
    """Outputs that do not depend on an input are forgotten when the backward is split."""

    def backward_weight(self, microbatch: int) -> None:
        part = getattr(self._weight_parts.get(microbatch), "__self__", None)
        if part is not None and part.path:
            part.roots.clear()
            part.gradients.clear()
        super().backward_weight(microbatch)
