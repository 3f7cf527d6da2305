"""Faults of loss functions that use parameters of the last stage (TRN-29)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from ..stage import Stage
from .fault import breaks


@breaks("TRN-29")
class BackwardFromOutput(Stage):
    """The backward begins at what the last stage returned: what the loss function alone uses gets no gradient."""

    def end_in(self, microbatch: int, loss: Tensor) -> None:
        outputs = [one for one in self._in_flight[microbatch].outputs if one.requires_grad]
        beside = _used_beside(loss, outputs) if outputs else []
        super().end_in(microbatch, loss)
        if beside:
            gradients = torch.autograd.grad(loss, outputs)
            surrogate = torch.stack([(one * g).sum() for one, g in zip(outputs, gradients, strict=True)])
            super().end_in(microbatch, surrogate.sum())


def _used_beside(loss: Tensor, outputs: Sequence[Tensor]) -> list[Tensor]:
    """The parameters that a loss depends on otherwise than through outputs."""
    ends = {one.grad_fn for one in outputs}
    waiting: list[Node | None] = [loss.grad_fn]
    found: list[Tensor] = []
    while waiting:
        node = waiting.pop()
        if node is None or node in ends:
            continue
        if hasattr(node, "variable"):
            found.append(node.variable)
        waiting += [target for target, _ in node.next_functions]
    return found


@breaks("TRN-29")
class LossDifferentiatedTwice(Stage):
    """The loss's own part of the backward runs twice: parameters that it uses beside what was returned notice."""

    def end_in(self, microbatch: int, loss: Tensor) -> None:
        beside = _used_beside(loss, self._in_flight[microbatch].outputs)
        if beside:
            torch.autograd.backward(loss, inputs=beside, retain_graph=True)
        super().end_in(microbatch, loss)


@breaks("TRN-29", schedule="ZB-H1", status="error", tells="detached in-place")
class OutputFreedBeforeItsLoss(Stage):
    """What the last stage returned is detached after the input part; for the weight part the loss still needs it."""

    def backward_input(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        returned = self._returned.pop(microbatch, ())
        found = super().backward_input(microbatch, gradients)
        for one in returned:
            if one._base is None and one.grad_fn is not None:
                one.detach_()
        return found

    def end_in(self, microbatch: int, loss: Tensor) -> None:
        self._returned[microbatch] = tuple(self._in_flight[microbatch].outputs)
        super().end_in(microbatch, loss)

    @property
    def _returned(self) -> dict[int, tuple[Tensor, ...]]:
        found: dict[int, tuple[Tensor, ...]] = self.__dict__.setdefault("_outputs_returned", {})
        return found
