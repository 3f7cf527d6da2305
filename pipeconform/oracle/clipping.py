"""Scales all gradients of the model down to a limit on their norm, in the oracle."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from pipeconform.case.case import Clip

__all__ = ["clip"]

_APART = 1e-6
"""What torch.nn.utils.clip_grad_norm_ adds to the norm before it divides."""


def clip(parameters: Iterable[nn.Parameter], by: Clip) -> None:
    """Multiply every gradient by limit / norm where that is less than 1, with the norm over all of them.

    Only operations for which running error analysis has rules; `torch.nn.utils.clip_grad_norm_` fuses some.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return
    with torch.no_grad():
        sizes = torch.stack(
            [one.square().sum() if by.norm == "two" else one.abs().amax() for one in gradients]
        )
        norm = sizes.sum().sqrt() if by.norm == "two" else sizes.amax()
        factor = (by.limit / (norm + _APART)).clamp(max=1.0)
        for one in gradients:
            one.mul_(factor)
