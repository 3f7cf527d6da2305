"""How values become microbatches where that is not as usual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Along",
    "CustomSplit",
    "SplitRule",
    "Whole",
]


@dataclass(frozen=True)
class Along:
    """A tensor is split in dimension `dim`, which has as many entries as the batch has samples."""

    dim: int


@dataclass(frozen=True)
class Whole:
    """Every microbatch is given the value as it is, also if it is a tensor."""


@dataclass(frozen=True)
class CustomSplit:
    """``function(value, sizes)`` returns one part per microbatch; `sizes` are their numbers of samples."""

    function: Callable[[Any, Sequence[int]], Sequence[Any]]


SplitRule = Along | Whole | CustomSplit
