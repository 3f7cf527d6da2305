"""What crosses a boundary between two stages: its description, and the bytes that carry it.

Nothing is agreed beforehand, so the stages never need a dry run (which would touch buffers, random numbers
and hooks). Every message describes itself, and shapes, batch sizes and the number of microbatches may
change from step to step. A message is one byte tensor of n bytes::

    int64 kind (0 values, 1 failure) · int64 n · int64 length of the header · header (JSON) · tensors, aligned

or, for a failure, kind, n, length of the text and the text.

The header holds the containers and, per tensor, dtype, shape and requires_grad; None stands for a tensor
that is not there (a gradient nobody computed). Any dtype, number of tensors and number of dimensions can
be sent; any memory layout arrives contiguous. The message is a copy, so a stage may overwrite its output
while the message is still under way.

The description of a boundary is *frozen* by its first microbatch of the first step: `check_same` refuses a later
one with another number of tensors, other containers, dtypes or sizes, before anything wrong is sent. In the
batch dimension an output has as many samples as the stage's input, if it had at first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .containers import Structure, build, leaves_of, structure_of

VALUES, FAILURE = 0, 1
PREFIX_BYTES = 16
"""Kind and n: enough to know how much follows."""
_ALIGNMENT = 64  # bytes; what torch's CPU allocator gives every tensor
_HEADER_AT = PREFIX_BYTES + 8
_TENSORS_AT = 256  # bytes, if the header leaves room: messages of equal tensors then have equal lengths


@dataclass(frozen=True, kw_only=True)
class TensorMeta:
    """One tensor's description."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    requires_grad: bool

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True, kw_only=True)
class BoundaryMeta:
    """A boundary's description: its containers, and its tensors from left to right."""

    structure: Structure
    tensors: tuple[TensorMeta, ...]

    @classmethod
    def of(cls, value: Any) -> BoundaryMeta:
        """Describe a stage's output.

        Raises:
            TypeError: A leaf is not a tensor.
        """
        for position, leaf in enumerate(leaves_of(value)):
            if not isinstance(leaf, Tensor):
                raise TypeError(
                    f"output {position} is {type(leaf).__name__} {leaf!r:.60}; only tensors (in tuples, "
                    f"lists and dicts) can be handed to the next stage"
                )
        tensors = tuple(
            TensorMeta(dtype=leaf.dtype, shape=tuple(leaf.shape), requires_grad=leaf.requires_grad)
            for leaf in leaves_of(value)
        )
        return cls(structure=structure_of(value), tensors=tensors)

    @property
    def differentiable(self) -> bool:
        """Whether a gradient comes back over this boundary at all."""
        return any(tensor.requires_grad for tensor in self.tensors)


def same_sizes(one: TensorMeta, other: TensorMeta, *, batch_dim: int) -> bool:
    """Whether two tensors have the same number of dimensions, and sizes outside the batch dimension."""
    return len(one.shape) == len(other.shape) and all(
        dim == batch_dim or a == b for dim, (a, b) in enumerate(zip(one.shape, other.shape, strict=True))
    )


def check_same(found: BoundaryMeta, *, frozen: BoundaryMeta, batch_dim: int) -> None:
    """Compare a microbatch's boundary with the one frozen by the first microbatch.

    Raises:
        ValueError: Containers, number of tensors, dtypes, number of dimensions or sizes outside the batch
            dimension differ; the message gives both.
    """
    if found.structure != frozen.structure:
        raise ValueError(f"outputs are {found.structure}, but the first microbatch had {frozen.structure}")
    for position, (now, was) in enumerate(zip(found.tensors, frozen.tensors, strict=True)):
        if now.dtype != was.dtype:
            raise ValueError(f"output {position} changed its dtype from {was} to {now}")
        if not same_sizes(now, was, batch_dim=batch_dim):
            raise ValueError(f"output {position} changed its shape from {was} to {now}")


def check_samples(
    found: BoundaryMeta,
    *,
    samples: int | None,
    frozen: BoundaryMeta,
    frozen_samples: int | None,
    batch_dim: int,
) -> None:
    """Compare the batch dimension with the number of samples of the stage's input, where the two were equal at first.

    Raises:
        ValueError: An output has another number of samples; the message gives its shape and the right one.
    """
    if samples is None:
        return
    for position, (now, was) in enumerate(zip(found.tensors, frozen.tensors, strict=True)):
        if len(was.shape) <= batch_dim or was.shape[batch_dim] != frozen_samples:
            continue
        if now.shape[batch_dim] != samples:
            right = replace(was, shape=(*was.shape[:batch_dim], samples, *was.shape[batch_dim + 1 :]))
            raise ValueError(
                f"output {position} changed its shape from {right} to {now}: it has {samples} samples"
            )


def pack(value: Any, *, device: torch.device) -> Tensor:
    """The message that carries `value`: a tree of tensors and Nones."""
    leaves: list[Tensor | None] = leaves_of(value)
    entries = [
        None if leaf is None else [_name(leaf.dtype), list(leaf.shape), leaf.requires_grad] for leaf in leaves
    ]
    header = json.dumps([structure_of(value), entries]).encode()
    offsets, length = _offsets([leaf.nbytes if leaf is not None else 0 for leaf in leaves], len(header))
    message = torch.zeros(length, dtype=torch.uint8, device=device)
    _write(message, VALUES, header)
    for leaf, offset in zip(leaves, offsets, strict=True):
        if leaf is not None and leaf.numel():
            message[offset : offset + leaf.nbytes] = _bytes_of(leaf)
    return message


def pack_failure(text: str, *, device: torch.device) -> Tensor:
    """The message that says that a rank failed."""
    data = text.encode()
    message = torch.zeros(_HEADER_AT + len(data), dtype=torch.uint8, device=device)
    _write(message, FAILURE, data)
    return message


def prefix_of(message: Tensor) -> tuple[int, int]:
    """Kind and length in bytes of the message that begins so."""
    kind, length = _numbers(message[:PREFIX_BYTES])
    return kind, length


def unpack(message: Tensor) -> Any:
    """The tree that `pack` was given: fresh contiguous tensors, leaves of autograd, flags as they were."""
    header = _header(message)
    structure, entries = json.loads(header)
    leaves: list[Tensor | None] = []
    empty = [
        None if entry is None else torch.empty(entry[1], dtype=_dtype(entry[0]), device=message.device)
        for entry in entries
    ]
    offsets, _ = _offsets([leaf.nbytes if leaf is not None else 0 for leaf in empty], len(header))
    for leaf, entry, offset in zip(empty, entries, offsets, strict=True):
        if leaf is not None and leaf.numel():
            leaf.reshape(-1).view(torch.uint8).copy_(message[offset : offset + leaf.nbytes])
        leaves.append(leaf if leaf is None or not entry[2] else leaf.requires_grad_())
    return build(structure, leaves)


def unpack_failure(message: Tensor) -> str:
    """The text that `pack_failure` was given."""
    return _header(message).decode()


def _write(message: Tensor, kind: int, header: bytes) -> None:
    numbers = b"".join(n.to_bytes(8, "little") for n in (kind, message.numel(), len(header)))
    message[: _HEADER_AT + len(header)] = torch.frombuffer(bytearray(numbers + header), dtype=torch.uint8)


def _header(message: Tensor) -> bytes:
    (length,) = _numbers(message[PREFIX_BYTES:_HEADER_AT])
    return _bytes(message[_HEADER_AT : _HEADER_AT + length])


def _numbers(data: Tensor) -> list[int]:
    found = _bytes(data)
    return [int.from_bytes(found[start : start + 8], "little") for start in range(0, len(found), 8)]


def _offsets(sizes: Sequence[int], header: int) -> tuple[list[int], int]:
    """Where each tensor's bytes begin, and the message's length."""
    offsets, end = [], max(_TENSORS_AT, _HEADER_AT + header)
    for size in sizes:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        offsets.append(start)
        end = start + size
    return offsets, end


def _bytes_of(tensor: Tensor) -> Tensor:
    # not contiguous(): one number expanded to one element counts as contiguous and keeps its stride of 0
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8)


def _bytes(data: Tensor) -> bytes:
    return data.cpu().numpy().tobytes()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found
