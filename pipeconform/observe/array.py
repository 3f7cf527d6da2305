"""A tensor's value as plain data: what crosses from a rank to the controller.

Raw bytes make the commonest judgement (bit for bit equal) a comparison of two byte strings, and
a message needs no pickle.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import torch


class Array(msgspec.Struct, frozen=True, array_like=True):
    """The dtype, shape and C-ordered bytes of one tensor (on whatever device it was)."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Array:
        """Record `tensor`: any dtype, device and layout; the value is what counts."""
        import torch

        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        if flat.is_conj() or flat.is_neg():
            flat = flat.resolve_conj().resolve_neg()
        if (flat.is_floating_point() and flat.element_size() > 1) or flat.is_complex():
            flat = flat + 0.0  # one zero: a sign that no arithmetic sees is no difference
        elif flat.stride() != (1,):
            flat = flat.clone()  # one number expanded to one element counts as contiguous
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def tensor(self) -> torch.Tensor:
        """The value as a new CPU tensor."""
        import torch

        dtype = getattr(torch, self.dtype)
        if not self.data:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(bytearray(self.data), dtype=dtype).reshape(self.shape)

    def __repr__(self) -> str:
        return f"Array({self.dtype}{list(self.shape)})"
