"""How values become microbatches, and microbatches values, where that is not as usual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Along",
    "CustomMerge",
    "CustomSplit",
    "MergeRule",
    "SplitRule",
    "Whole",
]


@dataclass(frozen=True)
class Along:
    """A tensor is split, or merged, in dimension `dim`, which has as many entries as the batch has samples."""

    dim: int


@dataclass(frozen=True)
class Whole:
    """Every microbatch is given the value as it is, also if it is a tensor; of an output, the batch has it once."""


@dataclass(frozen=True)
class CustomSplit:
    """``function(value, sizes)`` returns one part per microbatch; `sizes` are their numbers of samples."""

    function: Callable[[Any, Sequence[int]], Sequence[Any]]


@dataclass(frozen=True)
class CustomMerge:
    """``function(merged, value)``, called for each microbatch in the batch's order, the first of which begins."""

    function: Callable[[Any, Any], Any]


SplitRule = Along | Whole | CustomSplit
MergeRule = Along | Whole | CustomMerge
