"""The bytes that carry a tree of tensors over a boundary.

Nothing is agreed beforehand, so the stages never need a dry run (which would touch buffers, random numbers
and hooks). Every message describes itself, and shapes, batch sizes and the number of microbatches may
change from step to step. A message is one byte tensor of n bytes::

    int64 kind (0 values, 1 failure) · int64 n · int64 length of the header · header (JSON) · tensors, aligned

or, for a failure, kind, n, length of the text and the text.

The header holds the containers and, per tensor, dtype, shape and requires_grad; None stands for a missing
tensor (a gradient that was not computed). Any dtype, number of tensors and number of dimensions can
be sent; any memory layout arrives contiguous. The message is a copy, the only one that is made: a stage may
overwrite its output while the message is still under way, and what arrives lies in the message's memory.

If a tensor is cut over ranks (`DTensor`), every rank sends its part, and the header has placements and shape of
the whole; the receiver puts it together again on a mesh of its own.

Boundaries look alike from microbatch to microbatch, so the bytes before the tensors are written, and read, once
per kind of boundary: both ends keep the last few.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from .containers import Structure, build, leaves_of, structure_of

VALUES, FAILURE = 0, 1
PREFIX_BYTES = 16
"""Kind and n: enough to know how much follows."""
_ALIGNMENT = 64  # bytes; what torch's CPU allocator gives every tensor
_HEADER_AT = PREFIX_BYTES + 8
_TENSORS_AT = 256  # bytes, if the header leaves room: messages of equal tensors then have equal lengths

Cut = tuple[tuple[str, ...], tuple[int, ...]]
"""Placements, and the shape of the whole."""
Look = tuple[torch.dtype, tuple[int, ...], bool, Cut | None]
"""Dtype, shape and requires_grad of a tensor; or of its part on this rank, and how it is cut."""


@dataclass(frozen=True)
class _Contents:
    """The bytes before the tensors, decoded, and where the tensors begin."""

    structure: Structure
    looks: tuple[Look | None, ...]
    offsets: tuple[int, ...]


def pack(value: Any, *, device: torch.device) -> Tensor:
    """The message that carries `value`: a tree of tensors and Nones."""
    leaves: list[Tensor | None] = leaves_of(value)
    looks = tuple(None if leaf is None else _look(leaf) for leaf in leaves)
    parts = list(_beginning(structure_of(value), looks, device))
    for position, leaf in enumerate(leaves):
        own = leaf.to_local() if isinstance(leaf, DTensor) else leaf
        if own is not None and own.numel():
            parts[2 * position + 1] = _bytes_of(own)
    return torch.cat(parts)


def pack_failure(text: str, *, device: torch.device) -> Tensor:
    """The message that says that a rank failed."""
    data = text.encode()
    return _tensor(struct.pack("<3q", FAILURE, _HEADER_AT + len(data), len(data)) + data, device)


def beginning_of(message: Tensor) -> bytes:
    """The bytes before the tensors, or as many of them as are read at once; for `prefix_of`, `unpack` and its kin."""
    return _bytes(message[:_TENSORS_AT])


def prefix_of(begun: bytes) -> tuple[int, int]:
    """Kind and length in bytes of the message that begins like this."""
    kind, length = struct.unpack_from("<2q", begun)
    return kind, length


def unpack(message: Tensor, begun: bytes, *, mesh: DeviceMesh | None = None) -> Any:
    """The tree that `pack` was given: contiguous tensors, leaves of autograd, flags as they were.

    They lie in the memory of the message, which must be whole and must not be used otherwise from now on. Tensors that
    were cut are cut over the last axis of `mesh`.

    Raises:
        ValueError: A tensor was cut, but there is no mesh.
    """
    contents = _contents(_header(message, begun))
    storage = message.untyped_storage()
    leaves: list[Tensor | None] = []
    for look, offset in zip(contents.looks, contents.offsets, strict=True):
        leaves.append(None)
        if look is not None:
            dtype, shape, wants_gradient, cut = look
            # No view of the message: for autograd an operation in place on one tensor must not affect the others.
            leaf = torch.empty(0, dtype=dtype, device=message.device)
            leaf.set_(storage, offset // dtype.itemsize, shape)  # type: ignore[call-overload]
            leaf = leaf if cut is None else _put_together(leaf, cut, mesh)
            leaves[-1] = leaf.requires_grad_() if wants_gradient else leaf
    return build(contents.structure, leaves)


def unpack_failure(message: Tensor, begun: bytes) -> str:
    """The text that `pack_failure` was given."""
    return _header(message, begun).decode()


@functools.lru_cache(maxsize=64)
def _beginning(
    structure: Structure, looks: tuple[Look | None, ...], device: torch.device
) -> Sequence[Tensor]:
    """The bytes before every tensor, each followed by an empty place for it."""
    entries = [None if look is None else [_name(look[0]), *look[1:]] for look in looks]
    header = json.dumps([structure, entries]).encode()
    offsets, n = _offsets(looks, len(header))
    begun = struct.pack("<3q", VALUES, n, len(header)) + header
    nothing, parts, end = torch.empty(0, dtype=torch.uint8, device=device), [], 0
    for look, offset in zip(looks, offsets, strict=True):
        parts += [_tensor(begun.ljust(offset - end, b"\0"), device), nothing]
        begun, end = b"", offset + _size(look)
    return [*parts, _tensor(begun.ljust(n - end, b"\0"), device)]


@functools.lru_cache(maxsize=64)
def _contents(header: bytes) -> _Contents:
    structure, entries = json.loads(header)
    looks = tuple(
        None if one is None else (_dtype(one[0]), tuple(one[1]), one[2], _cut(one[3])) for one in entries
    )
    offsets, _ = _offsets(looks, len(header))
    return _Contents(structure, looks, tuple(offsets))


def _look(leaf: Tensor) -> Look:
    if not isinstance(leaf, DTensor):
        return leaf.dtype, tuple(leaf.shape), leaf.requires_grad, None
    told = tuple(map(_told, leaf.placements)), tuple(leaf.shape)
    return leaf.dtype, tuple(leaf.to_local().shape), leaf.requires_grad, told


def _told(placement: Placement) -> str:
    if isinstance(placement, Shard):
        return f"shard {placement.dim}"
    return f"partial {placement.reduce_op}" if isinstance(placement, Partial) else "replicate"


def _placement(told: str) -> Placement:
    kind, _, how = told.partition(" ")
    if kind == "shard":
        return Shard(int(how))
    return Partial(how) if kind == "partial" else Replicate()


def _cut(entry: list[Any] | None) -> Cut | None:
    return None if entry is None else (tuple(entry[0]), tuple(entry[1]))


def _put_together(part: Tensor, cut: Cut, mesh: DeviceMesh | None) -> DTensor:
    placements, shape = cut
    if mesh is None or mesh.mesh_dim_names is None:
        raise ValueError(
            f"a tensor of shape {list(shape)} arrived cut over ranks ({', '.join(placements)}), but this rank has no "
            f"mesh of named axes: give the plan's ranks one"
        )
    stride = torch.empty(shape, device="meta").stride()
    axis = mesh[mesh.mesh_dim_names[-1]]
    made: DTensor = DTensor.from_local(
        part, axis, list(map(_placement, placements)), run_check=False, shape=torch.Size(shape), stride=stride
    )
    return made


def _offsets(looks: Sequence[Look | None], header: int) -> tuple[list[int], int]:
    """Where each tensor's bytes begin, and the message's length."""
    offsets, end = [], max(_TENSORS_AT, _HEADER_AT + header)
    for look in looks:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        offsets.append(start)
        end = start + _size(look)
    return offsets, end


def _size(look: Look | None) -> int:
    return 0 if look is None else look[0].itemsize * torch.Size(look[1]).numel()


def _header(message: Tensor, begun: bytes) -> bytes:
    (length,) = struct.unpack_from("<q", begun, PREFIX_BYTES)
    if _HEADER_AT + length > len(begun):
        begun = _bytes(message[: _HEADER_AT + length])
    return begun[_HEADER_AT : _HEADER_AT + length]


def _bytes_of(tensor: Tensor) -> Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    if not plain.is_contiguous() or plain.numel() == 1:
        # a number that was expanded to one element counts as contiguous and keeps its stride of 0
        plain = plain.clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8)


def _bytes(data: Tensor) -> bytes:
    return data.cpu().numpy().tobytes()


def _tensor(data: bytes, device: torch.device) -> Tensor:
    plain = (
        torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    )
    return plain.to(device)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found
