"""Batch normalisation with statistics over all replicas, in plain collectives and autograd.

``torch.nn.SyncBatchNorm`` refuses tensors on a CPU; this computes the same on any device. For any number of rows, two
passes over the data are summed over the group: first for the mean, then for the squared distances from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["SyncedNormLayer", "synchronise"]


class _Over:
    """Holds a process group, so that copying a module does not copy its group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def __deepcopy__(self, memo: object) -> _Over:
        return self


class _Normalised(torch.autograd.Function):
    """``(rows, weight, bias)`` to the normalised rows, the mean and the biased variance over the group's rows."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, group: dist.ProcessGroup, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        total = torch.cat([rows.sum(0), rows.new_tensor([rows.shape[0]])])
        dist.all_reduce(total, group=group)
        count = total[-1]
        mean = total[:-1] / count
        spread = (rows - mean).square().sum(0)
        dist.all_reduce(spread, group=group)
        variance = spread / count
        scale = (variance + eps).rsqrt()
        normed = (rows - mean) * scale
        ctx.save_for_backward(normed, weight, scale, count)
        ctx.group = group
        ctx.mark_non_differentiable(mean, variance, count)
        return normed * weight + bias, mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        normed, weight, scale, count = ctx.saved_tensors
        outer = gradients[0]
        inner = outer * weight
        sums = torch.stack([inner.sum(0), (inner * normed).sum(0)])
        dist.all_reduce(sums, group=ctx.group)
        inner = scale * (inner - (sums[0] + normed * sums[1]) / count)
        return inner, (outer * normed).sum(0), outer.sum(0), None, None


class SyncedNormLayer(nn.Module):
    """Like ``BatchNorm1d`` over every dimension but the last; without a group, it normalises over its own rows."""

    over: _Over | None = None

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise; in training with statistics over the group's rows, which also update the running statistics."""
        rows = x.reshape(-1, x.shape[-1])
        if not self.training or self.over is None:
            alone: Tensor = self.norm(rows)
            return alone.reshape(x.shape)
        norm, group = self.norm, self.over.group
        normed, mean, variance, count = _Normalised.apply(  # type: ignore[no-untyped-call]
            rows, norm.weight, norm.bias, group, norm.eps
        )
        with torch.no_grad():
            assert norm.momentum is not None
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.add_(1)
            norm.running_mean.lerp_(mean, norm.momentum)  # type: ignore[union-attr]
            norm.running_var.lerp_(variance * (count / (count - 1)), norm.momentum)  # type: ignore[union-attr]
        found: Tensor = normed.reshape(x.shape)
        return found


def synchronise(modules: Iterable[nn.Module], group: dist.ProcessGroup) -> None:
    """Set the group of replicas over which the synchronised norms among `modules` normalise."""
    for module in modules:
        if isinstance(module, SyncedNormLayer):
            module.over = _Over(group)
