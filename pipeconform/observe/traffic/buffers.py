"""What happens to memory that a transfer is under way in.

A receive does not get the caller's memory. It gets some of its own, and the caller's holds poison until the wait
has ended: whoever reads earlier reads poison, on every run and not only when the message is late. What is sent is
copied when the send is issued and compared when its wait has ended. Poison is bytes of ones: not a number in every
floating dtype, −1 in integers.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Received", "Sent"]

_ONES = 0xFF


class Sent:
    """A tensor that is being sent."""

    def __init__(self, tensor: Tensor) -> None:
        self._bytes = _bytes_of(tensor)
        self._was = None if self._bytes is None else self._bytes.clone()

    def complete(self) -> bool:
        """The send is over; whether the memory is as it was."""
        return self._was is None or self._bytes is None or torch.equal(self._bytes, self._was)


class Received:
    """A tensor that is being received into; `memory` is what the transport gets."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()
        self._bytes = _bytes_of(tensor)
        self._poison = 1 if tensor.dtype is torch.bool else _ONES
        if self._bytes is None:  # nothing to hide, or nothing that a transport takes
            self.memory = tensor
            return
        self.memory = torch.empty_like(self._tensor)
        self._bytes.fill_(self._poison)

    def complete(self) -> bool:
        """Hand over what came; whether nobody wrote into the memory before."""
        if self._bytes is None:
            return True
        arrived = _bytes_of(self.memory)
        assert arrived is not None
        untouched = bool((self._bytes == self._poison).all())
        self._bytes.copy_(arrived)
        return untouched


def _bytes_of(tensor: Tensor) -> Tensor | None:
    """The memory of a contiguous tensor, past autograd and its version counters; None of any other."""
    if not tensor.is_contiguous() or not tensor.numel():
        return None
    return tensor.data.reshape(-1).view(torch.uint8)
