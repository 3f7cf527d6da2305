"""`DTensor`s in a batch: every rank splits and joins its own parts, so that nothing has to be sent.

If samples are cut over the ranks of a stage, microbatch k has the k-th part of every rank's own samples. A tensor that
every rank has whole is then split so that the same samples come together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from .containers import leaves_of

__all__ = ["joined", "part_of", "parts_in"]


def parts_in(*trees: Any, batch_dim: int) -> int:
    """The number of ranks over which samples are cut; 1 if every rank has all of them.

    Raises:
        ValueError: Samples are cut in one tensor, and another is no `DTensor`, or they are not cut into equal parts.
    """
    tensors = [leaf for tree in trees for leaf in leaves_of(tree) if isinstance(leaf, Tensor)]
    cut = [one for one in tensors if isinstance(one, DTensor) and _is_cut(one, batch_dim=batch_dim)]
    if not cut:
        return 1
    num, samples = cut[0].device_mesh.size(), cut[0].shape[batch_dim]
    if any(not isinstance(one, DTensor) for one in tensors):
        raise ValueError(
            f"the samples of a batch are cut over {num} ranks, but not all of its tensors are DTensors"
        )
    if samples % num:
        raise ValueError(f"{samples} samples cannot be cut over {num} ranks into equal parts")
    return num


def part_of(leaf: DTensor, start: int, size: int, *, batch_dim: int, parts: int) -> DTensor:
    """`size` samples from number `start` on, equally many from each of the `parts` that samples are cut into."""
    own = leaf.to_local()
    if _is_cut(leaf, batch_dim=batch_dim):
        own = own.narrow(batch_dim, start // parts, size // parts)
    elif parts == 1:
        own = own.narrow(batch_dim, start, size)
    else:
        by_rank: Tensor = own.unflatten(batch_dim, (parts, -1))  # type: ignore[no-untyped-call]
        own = by_rank.narrow(batch_dim + 1, start // parts, size // parts).flatten(batch_dim, batch_dim + 1)
    return _made(own, leaf, batch_dim=batch_dim, samples=size)


def joined(column: Sequence[DTensor], *, batch_dim: int) -> DTensor:
    """The tensors one after the other, in their samples; on every rank, its own parts."""
    own = torch.cat([one.to_local() for one in column], dim=batch_dim)
    samples = sum(one.shape[batch_dim] for one in column)
    return _made(own, column[0], batch_dim=batch_dim, samples=samples)


def _is_cut(tensor: DTensor, *, batch_dim: int) -> bool:
    return any(placement.is_shard(batch_dim) for placement in tensor.placements)


def _made(own: Tensor, like: DTensor, *, batch_dim: int, samples: int) -> DTensor:
    shape = torch.Size((*like.shape[:batch_dim], samples, *like.shape[batch_dim + 1 :]))
    made: DTensor = DTensor.from_local(
        own,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=shape,
        stride=torch.empty(shape, device="meta").stride(),
    )
    return made
