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
    """A whole backward among split ones loses its weight part.

    While weight parts wait, a whole backward is taken for an input part, and its weight part never comes.
    """

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
    """Graphs are kept for ever.

    Weight parts that have run are kept, and every graph with them, for ever.
    """

    stage_type = _HoardingStage


@breaks("SPL-5", schedule="ZB-H1", source="https://github.com/pytorch/pytorch/issues/136766")
class WeightPartsKept(_HoardingStage):
    """Graphs are kept until the end of the step.

    Weight parts that have run are kept until the step ends: memory grows with m.
    """

    def clear(self) -> None:
        super().clear()
        self.hoard.clear()


@breaks("SPL-3")
class DeferredForgotten(Stage):
    """Whole backwards forget deferred-weight functions.

    Deferred-weight functions are known to schedules with weight parts only.
    """

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        builder, self._dw_builder = self._dw_builder, None
        try:
            return super().backward(microbatch, gradients)
        finally:
            self._dw_builder = builder


@breaks("SPL-3", schedule="ZB-H1")
class DeferredTwice(Stage):
    """Deferred-weight functions run twice.

    A deferred-weight function runs at the input part, as if the backward were whole, and at the weight part.
    """

    def backward_input(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        found = super().backward_input(microbatch, gradients)
        if self._dw_builder is not None:
            self._weight_parts[microbatch]()
        return found


@breaks("SPL-4", schedule="ZB-H1")
class NothingToDo(Stage):
    """Weight parts that are not due are ignored.

    A weight part for which there is nothing to do is taken to be done.
    """

    def backward_weight(self, microbatch: int) -> None:
        if microbatch in self._weight_parts:
            super().backward_weight(microbatch)


@breaks("SPL-4", schedule="ZB-H1")
class BareKeys(Stage):
    """The error is a bare key.

    What is asked for too early or too late is looked up, and the answer is the key that is missing.
    """

    def backward_weight(self, microbatch: int) -> None:
        if microbatch not in self._weight_parts:
            raise KeyError(microbatch)
        super().backward_weight(microbatch)


@breaks("SPL-1", schedule="InterleavedZeroBubble")
class IndependentDropped(Stage):
    """Outputs that no input reaches are forgotten when the backward is split."""

    def backward_weight(self, microbatch: int) -> None:
        part = getattr(self._weight_parts.get(microbatch), "__self__", None)
        if part is not None and part.path:
            part.roots.clear()
            part.gradients.clear()
        super().backward_weight(microbatch)
