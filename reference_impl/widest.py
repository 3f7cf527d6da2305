"""Sums in the widest dtype that a device has."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["zero_on"]


def zero_on(device: torch.device) -> Tensor:
    """Zero in float64, or in float32 on a device that has no float64."""
    try:
        return torch.zeros((), dtype=torch.float64, device=device)
    except TypeError:
        return torch.zeros((), dtype=torch.float32, device=device)
