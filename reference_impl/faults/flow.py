"""Faults at one place of the data flow: a gradient that is wrong for one stage or one microbatch only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..stage import Stage
from .fault import breaks

_Gradients = Sequence[Tensor | None]


@breaks("TRN-1")
class GradientOfNeighbour(Stage):
    """A stage before the last uses the gradient of the previous microbatch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._before: _Gradients | None = None

    def backward(self, microbatch: int, gradients: _Gradients) -> list[Tensor | None]:
        begins_at_loss = all(g is not None and not g.ndim for g in gradients)
        late, self._before = self._before, gradients
        alike = late is not None and [g is None or g.shape for g in late] == [
            g is None or g.shape for g in gradients
        ]
        if microbatch and not begins_at_loss and late is not None and alike:
            gradients = late
        return super().backward(microbatch, gradients)


@breaks("TRN-1")
class GradientRounded(Stage):
    """Gradients travel in bfloat16, in whatever dtype activations travel."""

    def backward(self, microbatch: int, gradients: _Gradients) -> list[Tensor | None]:
        found = super().backward(microbatch, gradients)
        return [None if g is None else g.to(torch.bfloat16).to(g.dtype) for g in found]


@breaks("TRN-1")
class OneMicrobatchScaled(Stage):
    """The gradients of microbatch 1 are multiplied by 1.5."""

    def backward(self, microbatch: int, gradients: _Gradients) -> list[Tensor | None]:
        found = super().backward(microbatch, gradients)
        return [None if g is None else g * 1.5 for g in found] if microbatch == 1 else found


@breaks("TRN-1", also=("TRN-3",))
class AccumulatedTwice(Stage):
    """Stage 1 adds every microbatch to its gradients twice."""

    def backward(self, microbatch: int, gradients: _Gradients) -> list[Tensor | None]:
        before = [None if p.grad is None else p.grad.clone() for p in self.module.parameters()]
        found = super().backward(microbatch, gradients)
        for parameter, earlier in zip(self.module.parameters(), before, strict=True):
            if self.index == 1 and parameter.grad is not None:
                parameter.grad += parameter.grad - (0 if earlier is None else earlier)
        return found
