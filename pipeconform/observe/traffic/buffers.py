"""Guards memory while a transfer on it is under way.

A receive does not get the caller's memory but some of its own, and the caller's holds poison until the wait
has ended: a read before that reads poison, on every run and not only if the message is late. What is sent is
copied when the send is issued and compared when its wait has ended. Poison is bytes of ones: not a number in every
floating dtype, −1 in integers. On a device all of this takes its turn in the stream: what a comparison found is read
later, because reading it would wait for the device and order what the implementation left unordered.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

__all__ = ["Received", "Sent"]

_ONES = 0xFF


class Sent:
    """A tensor that is being sent."""

    __slots__ = ("_bytes", "_was")

    def __init__(self, tensor: Tensor) -> None:
        self._bytes = _bytes_of(tensor)
        self._was = None if self._bytes is None else self._bytes.clone()

    def complete(self) -> bool | Tensor:
        """End the send; return whether the memory is unchanged, which on a device is a tensor to be read later."""
        return self._was is None or self._bytes is None or _equal(self._bytes, self._was)


class Received:
    """A tensor that is being received into; `memory` is what the transport gets."""

    __slots__ = ("_bytes", "_poison", "memory")

    def __init__(self, tensor: Tensor) -> None:
        self._bytes = _bytes_of(tensor)
        if self._bytes is None:  # an empty tensor, or one that no transport accepts
            self.memory = tensor
            return
        self.memory = torch.empty_like(tensor.data)
        self._poison = _poison(self._bytes.numel(), 1 if tensor.dtype is torch.bool else _ONES, tensor.device)
        self._bytes.copy_(self._poison)

    def complete(self) -> bool | Tensor:
        """Copy what arrived; return whether the memory had been left alone until then, on a device as a tensor."""
        if self._bytes is None:
            return True
        arrived = _bytes_of(self.memory)
        assert arrived is not None
        untouched = _equal(self._bytes, self._poison)
        self._bytes.copy_(arrived)
        return untouched


@functools.lru_cache(maxsize=16)  # a pipeline has few boundaries
def _poison(size: int, value: int, device: torch.device) -> Tensor:
    """So many bytes of poison, to copy from and to compare with."""
    return torch.full((size,), value, dtype=torch.uint8, device=device)


def _equal(one: Tensor, other: Tensor) -> bool | Tensor:
    return torch.equal(one, other) if one.is_cpu else (one == other).all()


def _bytes_of(tensor: Tensor) -> Tensor | None:
    """The memory of a contiguous tensor, without autograd and its version counters; None for any other."""
    if not tensor.is_contiguous() or not tensor.numel():
        return None
    return tensor.data.view(-1).view(torch.uint8)
