"""A module whose gradient overflows at a size that no other gradient of the model depends on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["LARGEST", "OverflowingLayer"]

LARGEST = 2.0
"""The largest gradient that is passed on as it is: so small that no other gradient overflows beside it."""


class _Limited(torch.autograd.Function):
    """The same values; gradients larger than `LARGEST` are infinite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.where(gradient.abs() > LARGEST, torch.inf, gradient)


class OverflowingLayer(nn.Module):
    """A linear map without a bias of its own, and a bias whose gradient overflows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the linear map and add the bias."""
        limited: Tensor = _Limited.apply(self.bias)  # type: ignore[no-untyped-call]
        y: Tensor = self.linear(x) + limited
        return y
