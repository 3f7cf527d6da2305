"""Tensors of which a rank holds a part: records the part, and how the whole is cut."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed.tensor import DTensor

from pipeconform.observe.observation import Sharding

__all__ = ["local_parts", "sharding_of"]


def local_parts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Every value, or this rank's part of it; does not communicate."""
    return {name: value.to_local() if isinstance(value, DTensor) else value for name, value in values.items()}


def sharding_of(values: Mapping[str, Any]) -> dict[str, Sharding]:
    """How the values are cut, by name; whole values are left out."""
    return {name: _sharding(value) for name, value in values.items() if isinstance(value, DTensor)}


def _sharding(value: DTensor) -> Sharding:
    mesh, (first, *_) = value.device_mesh, value.placements
    coordinates = mesh.get_coordinate() or [0] * mesh.ndim
    axes = list(zip(value.placements, mesh.shape, coordinates, strict=True))
    # a strided shard is one of a part that a later axis has cut before
    axes.sort(key=lambda axis: type(axis[0]).__name__ == "_StridedShard")
    return Sharding(
        placements=tuple(map(str, value.placements)),
        mesh=tuple(mesh.shape),
        dim=getattr(first, "dim", None),
        index=coordinates[0],
        shape=tuple(value.shape),
        cuts=tuple((one.dim, num, index) for one, num, index in axes if hasattr(one, "dim")),
        partial=any(one.is_partial() for one in value.placements),
    )
