"""A tensor's value as plain data, as it crosses from a rank to the controller.

Raw bytes make the most common judgement (bit for bit equal) a comparison of two byte strings, and
a message needs no pickle.
"""

from __future__ import annotations

import ctypes
import math
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import torch

__all__ = ["Array", "memory_of"]

_ITEM_BYTES = MappingProxyType(
    {
        **dict.fromkeys(("bool", "int8", "uint8"), 1),
        **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
        **dict.fromkeys(("int32", "uint32", "float32", "complex32"), 4),
        **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
        "complex128": 16,
        **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 1),
        "float8_e8m0fnu": 1,
        **dict.fromkeys(("qint8", "quint8", "quint4x2", "quint2x4", "float4_e2m1fn_x2"), 1),
        **{f"{kind}{bits}": 1 for kind in ("int", "uint") for bits in range(1, 8)},
        **dict.fromkeys(("bits8", "bits1x8", "bits2x4", "bits4x2"), 1),
        "bits16": 2,
        "qint32": 4,
    }
)
"""The bytes of an element, by torch's dtype."""


_PLAIN = frozenset(
    {"bool", "uint8", "float16", *(f"{kind}{bits}" for kind in ("int", "float") for bits in (32, 64))}
)
"""Dtypes that numpy calls by the same name."""


def _is_plain(tensor: torch.Tensor, dtype: str) -> bool:
    """Whether the tensor's memory holds its value: of no subclass, on the CPU, strided, with no bit for its sign."""
    import torch

    return (
        dtype in _PLAIN
        and type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_neg()
    )


class Array(msgspec.Struct, frozen=True, array_like=True):
    """The dtype, shape and C-ordered bytes of one tensor (on whatever device it was)."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        """Check what a rank sent, so that no judge allocates memory for a size that was only declared."""
        if (item := _ITEM_BYTES.get(self.dtype)) is None:
            raise ValueError(f"a tensor of dtype {self.dtype[:40]!r}; expected one of torch's")
        if math.prod(self.shape) * item != len(self.data) or (self.shape and min(self.shape) < 0):
            raise ValueError(f"{len(self.data)} bytes for a tensor of {self.dtype}{list(self.shape[:8])}")

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Array:
        """Record `tensor`, of any dtype, device and layout; only the value counts."""
        name = str(tensor.dtype).removeprefix("torch.")
        if _is_plain(tensor, name):
            return cls._of_plain(tensor.detach(), name)
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        if flat.is_conj() or flat.is_neg():
            flat = flat.resolve_conj().resolve_neg()
        if (flat.is_floating_point() and flat.element_size() > 1) or flat.is_complex():
            flat = flat + 0.0  # one zero: the sign of a zero makes no difference
        elif flat.stride() != (1,):
            flat = flat.clone()  # one number expanded to one element counts as contiguous
        return cls(name, tuple(tensor.shape), memory_of(flat))

    @classmethod
    def _of_plain(cls, tensor: torch.Tensor, dtype: str) -> Array:
        """Record what memory holds, in a third of the time: nearly every tensor."""
        data = memory_of(tensor.contiguous())
        if tensor.is_floating_point():
            import numpy as np

            values = np.frombuffer(data, dtype)
            # one zero: the sign of a zero makes no difference
            data = (values + values.dtype.type(0)).tobytes()
        return cls(dtype, tuple(tensor.shape), data)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def tensor(self) -> torch.Tensor:
        """The value as a new CPU tensor."""
        import torch

        dtype = getattr(torch, self.dtype)
        # in memory of torch's own, which engines may resize
        tensor = torch.empty(self.shape, dtype=dtype)
        ctypes.memmove(tensor.data_ptr(), self.data, len(self.data))
        return tensor

    def __repr__(self) -> str:
        return f"Array({self.dtype}{list(self.shape)})"


def memory_of(tensor: torch.Tensor) -> bytes:
    """The memory of a contiguous tensor on the CPU.

    `Tensor.numpy` would do, but leaves the tensor's storage fixed, so that an engine that frees memory by
    ``untyped_storage().resize_(0)`` would fail under observation only.
    """
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
