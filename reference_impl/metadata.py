"""What a boundary between two stages looks like, and what may change from microbatch to microbatch.

The first microbatch of the first step *freezes* the description of a boundary: `check_same` refuses a later
one with another number of tensors, other containers, dtypes or sizes, before anything wrong is sent. In the
batch dimension an output has as many samples as the stage's input, if it had at first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .containers import Structure, leaves_of, structure_of


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
        leaves = leaves_of(value)
        for position, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                raise TypeError(
                    f"output {position} is {type(leaf).__name__} {leaf!r:.60}; only tensors (in tuples, "
                    f"lists and dicts) can be handed to the next stage"
                )
        tensors = tuple(
            TensorMeta(dtype=leaf.dtype, shape=tuple(leaf.shape), requires_grad=leaf.requires_grad)
            for leaf in leaves
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
