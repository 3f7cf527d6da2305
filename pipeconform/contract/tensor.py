"""How stages are cut over several ranks each: tensor parallelism, in torch's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["CutLayer", "Held", "HeldBatch", "TensorParallel"]

Held = Literal["whole", "sequence", "width"]
"""What a rank holds of the main stream ``[B, S, W]``: all of it, its part of dimension 1, or of the last one.

As placements: ``Replicate()``, ``Shard(1)``, ``Shard(-1)``.
"""


HeldBatch = Literal["whole", "samples", "sequence", "width"]
"""What a rank holds of a batch: as `Held`, or its part of the samples, ``Shard(0)``."""


@dataclass(frozen=True, kw_only=True)
class CutLayer:
    """How one submodule is cut: ``ColwiseParallel``, ``RowwiseParallel`` or ``SequenceParallel``.

    ``column``: weight and bias in dimension 0; ``row``: the weight in dimension 1, the bias whole; ``sequence``: the
    parameters whole, the work is cut. `takes` and `gives` are plain tensors.
    """

    style: Literal["column", "row", "sequence"]
    takes: Held
    gives: Held


@dataclass(frozen=True, kw_only=True)
class TensorParallel:
    """How every stage is cut over the last axis of ``ranks.mesh``, and what of that crosses between stages.

    All tensor-parallel ranks of a replica are given the same data, and have the same outputs and losses.
    `pipeconform.stage_wrapping.wrapped` cuts a stage like this with ``parallelize_module``.
    """

    layers: Mapping[int, Mapping[str, CutLayer]] = field(default_factory=dict)
    """Per stage, by the submodule's name. All parameters of a stage belong to them, or there are none."""
    stream: Held = "whole"
    """What is held of the main stream between the layers of a stage, which it enters and leaves whole."""
    boundary: Held | None = None
    """If given, stages hand over `DTensor`s on the last axis of ``ranks.mesh``, placed like this; an engine must hand
    them on as such, on the receiving rank's mesh. What enters the model and what it returns are plain tensors."""
    batch: HeldBatch | None = None
    """If given, arguments, targets and what the last stage returns are `DTensor`s on the last axis of ``ranks.mesh``.

    Arguments and outputs have this placement; targets have it, too, or are whole on every rank. If arguments are cut in
    their samples, microbatch k has the k-th of m equal parts of every rank's own samples, so that nothing has to be
    moved; the targets of the same samples belong to it, however they are placed.
    """
