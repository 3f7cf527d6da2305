"""The norm of gradients that lie on several ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from .widest import zero_on

__all__ = ["norm"]


def norm(
    gradients: Iterable[Tensor], norm_type: float, *, group: dist.ProcessGroup | None, device: torch.device
) -> Tensor:
    """The norm, 2 or infinity, of this rank's `gradients` and those of the others in `group`, 0-d; collective."""
    largest = norm_type == math.inf
    total = zero_on(device)
    for gradient in gradients:
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        own = whole.to(total.dtype)
        total = torch.maximum(total, own.abs().amax()) if largest else total + own.square().sum()
    if group is not None:
        dist.all_reduce(total, op=dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=group)
    return total if largest else total.sqrt()
