"""Faults in how complex tensors pass from stage to stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..containers import map_leaves
from ..link import Failure, Link
from ..stage import Stage
from .fault import breaks


class _Receiving(Link):
    """Changes complex tensors that arrive."""

    def changed(self, value: Tensor) -> Tensor:
        """What the stage gets instead of a complex tensor."""
        raise NotImplementedError

    def receive(self, *, source: int) -> Any:
        value = super().receive(source=source)
        return value if isinstance(value, Failure) else map_leaves(self._seen, value)

    def _seen(self, leaf: Any) -> Any:
        return self.changed(leaf) if isinstance(leaf, Tensor) and leaf.is_complex() else leaf


@breaks("FWD-33")
class ImaginaryPartsLost(_Receiving):
    """Complex tensors are received into a buffer of real numbers."""

    def changed(self, value: Tensor) -> Tensor:
        real = torch.complex(value.detach().real, torch.zeros_like(value.real))
        return real.requires_grad_(value.requires_grad)


@breaks("FWD-33")
class ComplexCutOff(_Receiving):
    """Only tensors of floating dtypes are given a gradient to collect, and complex ones are none."""

    def changed(self, value: Tensor) -> Tensor:
        return value.detach()


@breaks("FWD-33")
class GradientsConjugated(Stage):
    """The gradient of a complex tensor is sent back as its conjugate, by another convention than autograd's."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        return [_conjugated(g) for g in super().backward(microbatch, gradients)]


def _conjugated(gradient: Tensor | None) -> Tensor | None:
    if gradient is None or not gradient.is_complex():
        return gradient
    return gradient.conj().resolve_conj()
