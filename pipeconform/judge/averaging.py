"""The mean of replicas' gradients, for the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

__all__ = ["Averaged", "average"]


class Averaged(Protocol):
    """The full model on the data of one replica."""

    parameters: list[nn.Parameter]
    reassociation: dict[int, Tensor]
    """By parameter the bound on the difference of two correct sums; filled only where it is asked for."""
    magnitudes: dict[int, Tensor] | None
    """None where no such bound is asked for."""


def average(runs: Sequence[Averaged]) -> None:
    """Give every replica the mean of all their gradients; None where no replica has one.

    A replica without a gradient counts as zero. What was accumulated before is the same everywhere, so that it
    does not matter whether it is averaged once more. The bound of the mean is the mean of the bounds and, for the
    additions and the division by the number of replicas R, (R + 2)·ε·Σ|g|/R (Higham, §4.2, as for microbatches).
    """
    num = len(runs)
    if num == 1:
        return
    for i, parameters in enumerate(zip(*(run.parameters for run in runs), strict=True)):
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            continue
        with torch.no_grad():
            total = gradients[0]
            for other in gradients[1:]:
                total = total + other
            mean = total / num
            for p in parameters:
                p.grad = mean.clone()
        if runs[0].magnitudes is None:
            continue
        with torch.no_grad():
            absolute = sum((g.abs() for g in gradients), torch.zeros_like(mean)) / num
            bound = sum(
                (run.reassociation.get(i, torch.zeros_like(mean)) for run in runs), torch.zeros_like(mean)
            )
            bound = bound / num + (num + 2) * torch.finfo(mean.dtype).eps * absolute
        for run in runs:
            run.reassociation[i] = bound
