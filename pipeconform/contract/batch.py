"""The data of one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeconform.contract.rules import SplitRule

__all__ = [
    "Batch",
    "Microbatch",
]


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """One microbatch, for engines that want an iterator."""

    args: tuple[Any, ...]
    kwargs: Mapping[int, Mapping[str, Any]]
    target: Any


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The data of one step.

    A rank that does not own the first stage gets other inputs of the same shapes and dtypes, one that does not own
    the last stage other targets: NaN in floating-point tensors, or other finite values if `Capabilities` claim that all
    ranks consume them. Keyword arguments of stages that the rank does not own have other values, too, unless
    ``kwargs_scope`` claims that they belong to the whole pipeline.

    Tensors in `args`, `kwargs` and `target` carry the batch in `batch_dim`; other values in `kwargs` are replicated to
    every microbatch. `kwarg_rules` names the keyword arguments that are split in another way. A ``BlockMask`` of
    torch's flex attention carries the batch in dimension 0 of its tables, and its ``mask_mod`` is asked for the samples
    of a microbatch from 0 on; one whose tables have a single sample is replicated.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[int, Mapping[str, Any]]
    """Keyword arguments per stage."""
    target: Any
    loss_kwargs: Mapping[str, Any]
    batch_dim: int
    num_microbatches: int
    microbatches: tuple[Microbatch, ...]
    kwarg_rules: Mapping[int, Mapping[str, SplitRule]] = field(default_factory=dict)
    """As in the plan."""
    returns_outputs: bool = True
    """Whether a training step returns its output; always true unless `Feature.OUTPUTS_ON_REQUEST` is claimed. If not,
    the implementation need not keep it."""
    source: Iterator[Microbatch] | None = None
    """If given, the step's microbatches are the next `num_microbatches` of this iterator, and `args`, `kwargs`,
    `target`, `microbatches` and `kwarg_rules` are empty; None unless `Feature.BATCH_SOURCES` is claimed.

    All training steps are given one iterator, and all evaluations another: what a step takes beyond its own
    microbatches is missing in the next. Every rank has iterators of its own, all of one length, and need not use them;
    values that it does not consume are as above."""
