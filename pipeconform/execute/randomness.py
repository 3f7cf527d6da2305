"""The state of a rank's random numbers: the CPU's generator, and its device's own."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["moved", "random_state"]


def random_state(device: torch.device) -> tuple[Tensor, ...]:
    """The states of the generators that a computation on `device` may use."""
    own = torch.get_rng_state()
    if device.type == "cpu":
        return (own,)
    of_device = getattr(torch.get_device_module(device), "get_rng_state", None)
    return (own,) if of_device is None else (own, of_device(device))


def moved(before: tuple[Tensor, ...], device: torch.device) -> bool:
    """Whether a number was drawn since `before`."""
    now = random_state(device)
    return not all(torch.equal(one, other) for one, other in zip(now, before, strict=True))
