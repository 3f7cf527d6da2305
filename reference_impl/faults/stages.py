"""Faults of stages: weight parts, deferred-weight functions, and calls that are not due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..adapter import ReferenceAdapter, ReferencePipeline
from ..stage import Stage


class _ForgettingStage(Stage):
    def left(self, num_microbatches: int) -> tuple[int, ...]:
        return ()

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        if self._weight_parts:
            return self.backward_input(microbatch, gradients)
        return super().backward(microbatch, gradients)


class _WholeAmongParts(ReferencePipeline):
    stage_type = _ForgettingStage


class WholeAmongParts(ReferenceAdapter):
    """While weight parts wait, a whole backward is taken for an input part, and its weight part never comes."""

    pipeline = _WholeAmongParts


class _HoardingStage(Stage):
    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self.hoard: list[Any] = []

    def backward_weight(self, microbatch: int) -> None:
        self.hoard.append(self._weight_parts.get(microbatch))
        super().backward_weight(microbatch)


class _GraphsHoarded(ReferencePipeline):
    stage_type = _HoardingStage


class GraphsHoarded(ReferenceAdapter):
    """Weight parts that have run are kept, and every graph with them, for ever."""

    pipeline = _GraphsHoarded


class _TidyingStage(_HoardingStage):
    def clear(self) -> None:
        super().clear()
        self.hoard.clear()


class _WeightPartsKept(ReferencePipeline):
    stage_type = _TidyingStage


class WeightPartsKept(ReferenceAdapter):
    """Weight parts that have run are kept until the step ends: memory grows with m."""

    pipeline = _WeightPartsKept


class _WholeOnlyStage(Stage):
    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        builder, self._dw_builder = self._dw_builder, None
        try:
            return super().backward(microbatch, gradients)
        finally:
            self._dw_builder = builder


class _DeferredForgotten(ReferencePipeline):
    stage_type = _WholeOnlyStage


class DeferredForgotten(ReferenceAdapter):
    """Deferred-weight functions are known to schedules with weight parts only."""

    pipeline = _DeferredForgotten


class _EagerStage(Stage):
    def backward_input(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        found = super().backward_input(microbatch, gradients)
        if self._dw_builder is not None:
            self._weight_parts[microbatch]()
        return found


class _DeferredTwice(ReferencePipeline):
    stage_type = _EagerStage


class DeferredTwice(ReferenceAdapter):
    """A deferred-weight function runs at the input part, as if the backward were whole, and at the weight part."""

    pipeline = _DeferredTwice


class _PatientStage(Stage):
    def backward_weight(self, microbatch: int) -> None:
        if microbatch in self._weight_parts:
            super().backward_weight(microbatch)


class _NothingToDo(ReferencePipeline):
    stage_type = _PatientStage


class NothingToDo(ReferenceAdapter):
    """A weight part for which there is nothing to do is taken to be done."""

    pipeline = _NothingToDo


class _TerseStage(Stage):
    def backward_weight(self, microbatch: int) -> None:
        if microbatch not in self._weight_parts:
            raise KeyError(microbatch)
        super().backward_weight(microbatch)


class _BareKeys(ReferencePipeline):
    stage_type = _TerseStage


class BareKeys(ReferenceAdapter):
    """What is asked for too early or too late is looked up, and the answer is the key that is missing."""

    pipeline = _BareKeys


class _PathOnlyStage(Stage):
    def backward_weight(self, microbatch: int) -> None:
        part = getattr(self._weight_parts.get(microbatch), "__self__", None)
        if part is not None and part.path:
            part.roots.clear()
            part.gradients.clear()
        super().backward_weight(microbatch)


class _IndependentDropped(ReferencePipeline):
    stage_type = _PathOnlyStage


class IndependentDropped(ReferenceAdapter):
    """An output that does not depend on the stage's inputs is not followed to its parameters."""

    pipeline = _IndependentDropped
