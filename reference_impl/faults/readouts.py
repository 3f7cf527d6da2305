"""Faults of loss functions that use parameters of the last stage (TRN-29)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..stage import Stage
from .fault import breaks


@breaks("TRN-29")
class BackwardFromOutput(Stage):
    """The backward begins at what the last stage returned: what the loss function alone uses gets no gradient."""

    def end_in(self, microbatch: int, loss: Tensor) -> None:
        outputs = self._in_flight[microbatch].outputs
        gradients = torch.autograd.grad(loss, outputs, allow_unused=True)
        given = zip(outputs, gradients, strict=True)
        super().end_in(microbatch, torch.stack([(one * g).sum() for one, g in given if g is not None]).sum())


@breaks("TRN-29")
class LossDifferentiatedTwice(Stage):
    """The gradient of what was returned is computed by a backward of its own, which other parameters notice, too."""

    def end_in(self, microbatch: int, loss: Tensor) -> None:
        mine = [one for one in self.module.parameters() if one.requires_grad]
        outputs = [one for one in self._in_flight[microbatch].outputs if one.requires_grad]
        sums = [one.sum() for one in outputs]
        used = torch.autograd.grad(sums, mine, retain_graph=True, allow_unused=True) if sums else ()
        beside = [one for one, gradient in zip(mine, used, strict=False) if gradient is None]
        if beside and loss.requires_grad:
            found = torch.autograd.grad(loss, beside, retain_graph=True, allow_unused=True)
            for parameter, gradient in zip(beside, found, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        super().end_in(microbatch, loss)


@breaks("TRN-29", schedule="ZB-H1", status="error", tells="detached in-place")
class OutputFreedBeforeItsLoss(Stage):
    """What the last stage returned is detached after the input part; for the weight part the loss still needs it."""

    def backward_input(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        returned = self._returned.pop(microbatch, ())
        found = super().backward_input(microbatch, gradients)
        for one in returned:
            if one._base is None:
                one.detach_()
        return found

    def end_in(self, microbatch: int, loss: Tensor) -> None:
        self._returned[microbatch] = tuple(self._in_flight[microbatch].outputs)
        super().end_in(microbatch, loss)

    @property
    def _returned(self) -> dict[int, tuple[Tensor, ...]]:
        found: dict[int, tuple[Tensor, ...]] = self.__dict__.setdefault("_outputs_returned", {})
        return found
