"""Faults of the norm over all stages' gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from ..adapter import ReferencePipeline
from ..widest import zero_on
from .fault import breaks


def _own_squares(pipeline: ReferencePipeline, *, repeated: bool) -> Tensor:
    """The sum of this rank's squares; tied parameters as often as they have names, if `repeated`."""
    squares = zero_on(pipeline.plan.ranks.device)
    for module in pipeline.modules.values():
        for _, parameter in module.named_parameters(remove_duplicate=not repeated):
            if parameter.grad is not None:
                squares += parameter.grad.to(squares.dtype).square().sum()
    return squares


def _over_ranks(pipeline: ReferencePipeline, value: Tensor) -> Tensor:
    if pipeline.plan.ranks.pipeline_group is not None:
        dist.all_reduce(value, group=pipeline.plan.ranks.pipeline_group)
    return value


@breaks("TRN-17", source="https://github.com/pytorch/torchtitan/issues/596")
class OwnNorm(ReferencePipeline):
    """Every rank returns the norm of its own stages."""

    def gradient_norm(self) -> Tensor | None:
        return _own_squares(self, repeated=False).sqrt() if self.modules else None


@breaks("TRN-17")
class NormsAdded(ReferencePipeline):
    """The ranks' norms are added instead of their squares."""

    def gradient_norm(self) -> Tensor | None:
        return _over_ranks(self, _own_squares(self, repeated=False).sqrt()) if self.modules else None


@breaks("TRN-17", source="https://github.com/NVIDIA/Megatron-LM/pull/7227")
class TiedTwice(ReferencePipeline):
    """A tied parameter counts once for each of its names."""

    def gradient_norm(self) -> Tensor | None:
        return _over_ranks(self, _own_squares(self, repeated=True)).sqrt() if self.modules else None


@breaks("TRN-17", also=("TRN-21",))
class CopiesCounted(ReferencePipeline):
    """What stages of different ranks share counts on each of them, in the norm that is reported and in clipping."""

    def counted_gradients(self) -> Sequence[Tensor]:
        return [p.grad for p in self.own_parameters() if p.grad is not None]
