"""What a pipeline is asked to do, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = [
    "LoadState",
    "Mode",
    "Operation",
    "OptimizerStep",
    "StepResult",
    "ZeroGrad",
]


class Mode(StrEnum):
    """What a run computes."""

    TRAIN = "train"  # forward, loss, backward
    EVAL = "eval"  # forward only, modules in eval mode, no gradient anywhere


@dataclass(frozen=True)
class ZeroGrad:
    """``set_to_none=True``: gradients become None; False: they become zeros."""

    set_to_none: bool = True


@dataclass(frozen=True)
class OptimizerStep:
    """One step of ``plan.optimizer`` on every owned stage."""


@dataclass(frozen=True)
class LoadState:
    """Load these parameters and buffers, per stage and builder's name.

    Every rank gets entries for all stages; those of stages that it does not own have other values. They are whole, also
    where stages are sharded or cut over ranks: a rank then takes its part.
    """

    state: Mapping[int, Mapping[str, torch.Tensor]]


Operation = ZeroGrad | OptimizerStep | LoadState


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What this rank has after a run; every field is optional, and the harness gathers them from all ranks."""

    output: Any = None
    """Merged over microbatches, in batch order."""
    losses: Sequence[torch.Tensor] | None = None
    """One 0-d tensor per microbatch, in batch order, before any division by m."""
    loss: torch.Tensor | None = None
    """The mean (or sum) over microbatches, 0-d, for engines that return one number."""
    microbatches: Sequence[int] | None = None
    """The microbatches that output, losses and loss belong to, ascending; None: all of them.

    A two-direction engine finishes one half of a batch on the first rank and the other on the last.
    """
    input_gradients: Sequence[torch.Tensor | None] | None = None
    """Per positional input of the first stage."""
