"""The mean of the replicas' gradients, in the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

__all__ = ["Averaged", "average", "widen"]


class Averaged(Protocol):
    """The full model on the data of one replica."""

    parameters: list[nn.Parameter]
    reassociation: dict[int, Tensor]
    """The bound on the difference of two correct sums, by parameter; filled only if bounds are wanted."""
    magnitudes: dict[int, Tensor] | None
    """None if no such bounds are wanted."""
    before: Sequence[Tensor | None]
    """The gradients from before the step."""
    divisor: int
    """The number by which the step's own gradients are divided."""


def average(runs: Sequence[Averaged]) -> dict[int, Tensor]:
    """Give every replica the mean of what all contributed in a step; None where no replica has a gradient.

    A replica without a gradient counts as zero. Contributions are averaged before they are divided by the number of
    microbatches, as wrappers do in their backward: with two replicas, bits are then mostly equal. Returns the mean of
    the absolute values by parameter, if bounds are wanted.
    """
    num, found = len(runs), dict[int, Tensor]()
    if num == 1:
        return found
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
            if runs[0].magnitudes is not None:
                found[i] = sum((g.abs() for g in gradients), torch.zeros_like(mean)) / num
    return found


def widen(runs: Sequence[Averaged], absolute: Mapping[int, Tensor]) -> None:
    """Turn the bounds of every replica's own sum into bounds of the mean; `absolute` comes from `average`.

    The bound of the mean is the mean of the bounds and, for the additions and divisions over R replicas of what the
    step contributed and of what was there before, (R + 2)·ε·Σ|g|/R (Higham, §4.2, as for microbatches).
    """
    num = len(runs)
    with torch.no_grad():
        for i, size in absolute.items():
            before = runs[0].before[i]
            weight = size / runs[0].divisor + (0 if before is None else before.abs())
            bounds = (run.reassociation.get(i, torch.zeros_like(size)) for run in runs)
            bound = sum(bounds, torch.zeros_like(size)) / num
            bound = bound + (num + 2) * torch.finfo(size.dtype).eps * weight
            for run in runs:
                run.reassociation[i] = bound
