"""Hints for the reader about what a wrong value is; no verdict depends on them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pipeconform.judge.relations import uniform_ratio
from pipeconform.observe.array import Array

__all__ = ["likeness", "scaled"]

_NARROWER = (torch.bfloat16, torch.float16, torch.float32)


def likeness(right: Array, mine: Array, peers: Mapping[int, Array], *, own: int) -> str:
    """A hint about what `mine` is; `peers` are the right values of all microbatches, `own` the one it should be."""
    for k, peer in peers.items():
        if k != own and peer == mine and mine != right:
            return f"it is microbatch {k}'s"
    if right.shape != mine.shape or right.dtype != mine.dtype:
        return ""
    a, b = right.tensor(), mine.tensor()
    if not b.is_floating_point():
        return ""
    if not bool(b.any()):
        return "it is zero everywhere"
    for dtype in _NARROWER:
        if torch.finfo(dtype).bits < torch.finfo(a.dtype).bits and torch.equal(a.to(dtype).to(a.dtype), b):
            return f"it is the reference's, rounded to {str(dtype).removeprefix('torch.')}"
    ratio = uniform_ratio({"": right}, {"": mine}) if mine.size > 1 else None
    return "" if ratio is None else f"it is {ratio:.6g} times the reference's"


def scaled(value: Array, factor: float) -> Array:
    """The value times a factor."""
    return value if factor == 1.0 else Array.of(value.tensor() * factor)
