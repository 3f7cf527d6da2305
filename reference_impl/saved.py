"""What a rank writes down so that training can go on in other processes, and how it reads it.

One file for each rank: the stages' parameters and buffers, the optimizer's state, its float32 copies and the scale of
the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .masters import LossScale, Masters

__all__ = ["SavedRank"]


class SavedRank:
    """What is saved of one rank: references to what is alive there."""

    def __init__(
        self,
        *,
        rank: int,
        modules: Mapping[int, nn.Module],
        optimizer: torch.optim.Optimizer | None,
        masters: Masters | None,
        scale: LossScale | None,
    ) -> None:
        self.name = f"rank-{rank}.pt"
        self.modules, self.masters, self.scale = modules, masters, scale
        self.optimizer = optimizer if masters is None else masters.optimizer

    def save(self, folder: Path) -> None:
        """Write the file."""
        torch.save(self.contents(), folder / self.name)

    def load(self, folder: Path) -> None:
        """Read the file; everything in it must have a place here, and the other way round."""
        self.take(torch.load(folder / self.name, weights_only=True))

    def contents(self) -> dict[str, Any]:
        """Everything, as tensors and numbers by name."""
        return {
            "stages": {s: module.state_dict() for s, module in self.modules.items()},
            "optimizer": {} if self.optimizer is None else self.optimizer.state_dict(),
            "copies": [] if self.masters is None else list(self.masters.copies.values()),
            "scale": None if self.scale is None else self.scale.value,
        }

    @torch.no_grad()
    def take(self, contents: Mapping[str, Any]) -> None:
        """Let the rank have what `contents` says."""
        for s, module in self.modules.items():
            module.load_state_dict(contents["stages"][s])
        if self.masters is not None:
            for copy, saved in zip(self.masters.copies.values(), contents["copies"], strict=True):
                copy.copy_(saved)
        if self.optimizer is not None:
            self.optimizer.load_state_dict(contents["optimizer"])
        if self.scale is not None:
            self.scale.value = contents["scale"]
