"""Faults of the clipped update: gradients are scaled by another norm than that of all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pipeconform.adapter import Clipping

from ..adapter import ReferencePipeline
from .fault import breaks

_WRONG = r"the parameter of [\w.]+ in stage \d is not the reference's"


@breaks("TRN-21", tells=_WRONG, source="https://github.com/pytorch/torchtitan/issues/596")
class ClippedByOwnNorm(ReferencePipeline):
    """Every rank scales its gradients by the norm of its own stages."""

    def norm_of_gradients(self, norm_type: float) -> Tensor:
        own = torch.stack([torch.linalg.vector_norm(one, norm_type) for one in self.counted_gradients()])
        norm: Tensor = torch.linalg.vector_norm(own, norm_type)
        return norm

    def gradient_norm(self) -> Tensor | None:
        return super().norm_of_gradients(2.0) if self.modules else None


@breaks("TRN-21", tells=_WRONG)
class ScaledBelowTheLimit(ReferencePipeline):
    """Gradients are scaled to the limit, also where their norm is below it."""

    def clip(self, clipping: Clipping) -> None:
        norm = self.norm_of_gradients(clipping.norm_type)
        for gradient in self.counted_gradients():
            gradient.mul_(clipping.max_norm / (norm + 1e-6))


@breaks("TRN-21", tells=_WRONG)
class MaximumIgnored(ReferencePipeline):
    """The 2-norm is taken, whichever was asked for."""

    def clip(self, clipping: Clipping) -> None:
        super().clip(Clipping(max_norm=clipping.max_norm))


@breaks("TRN-21", tells=_WRONG, source="https://github.com/NVIDIA/Megatron-LM/pull/7227")
class TiedCountedTwice(ReferencePipeline):
    """In the norm by which gradients are scaled, a tied parameter counts once for each of its names."""

    _repeated = False

    def counted_gradients(self) -> Sequence[Tensor]:
        if not self._repeated:
            return super().counted_gradients()
        named = (
            parameter.grad
            for module in self.modules.values()
            for _, parameter in module.named_parameters(remove_duplicate=False)
        )
        return [gradient for gradient in named if gradient is not None]

    def clip(self, clipping: Clipping) -> None:
        self._repeated = True
        super().clip(clipping)
        self._repeated = False


@breaks("DPC-10", tells=r"the parameter of .* in stage \d is not the reference's")
class ClippedByOwnShards(ReferencePipeline):
    """Of sharded replicas, every rank clips by the norm of its own shards."""

    def counted_gradients(self) -> Sequence[Tensor]:
        parts = (one.to_local() if isinstance(one, DTensor) else one for one in super().counted_gradients())
        return [part for part in parts if part.numel()]
