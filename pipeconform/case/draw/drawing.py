"""The state of a case that is being drawn, independent of Hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from pipeconform.case import blocks
from pipeconform.case.blocks import AnyBlock
from pipeconform.case.focus import Limits
from pipeconform.case.model import FloatType
from pipeconform.claims import BoundaryClaim, ScheduleClaim

__all__ = ["Drawing", "Pick", "usual_dtypes"]

T = TypeVar("T")


class Pick(Protocol):
    """Makes choices; for Hypothesis' choices see `pipeconform.case.draw.strategies`."""

    def __call__(self, table: Sequence[T]) -> T:
        """Choose one entry of a table, in which smaller values come first."""


class Drawing:
    """The claims, the source of choices, and the sizes drawn so far."""

    def __init__(self, pick: Pick, limits: Limits, claim: ScheduleClaim) -> None:
        self.pick, self.limits, self.claim = pick, limits, claim
        self.capabilities = limits.capabilities.under(claim)
        self.boundary, self.features = self.capabilities.boundary, self.capabilities.features
        self.num_ranks = self.stages_per_rank = self.num_microbatches = 0
        """p, v and m, once they are drawn."""
        self.num_replicas = self.num_tensor_ranks = 1
        """Drawn together with p."""
        self.turn: int | None = None
        """Which member of a subject with members is drawn; None to choose one."""

    @property
    def num_stages(self) -> int:
        """p·v."""
        return self.num_ranks * self.stages_per_rank

    @property
    def containers(self) -> list[str]:
        """The containers for several tensors that may cross a boundary."""
        return [c for c in ("tuple", "list") if c in self.boundary.containers]

    def one_of(self, table: Sequence[T]) -> T:
        """Choose one entry; a single one is no choice, so that it takes nothing from the source of choices."""
        return self.pick(table) if len(table) > 1 else table[0]

    def blocks(self, sequence: int, width: int) -> tuple[AnyBlock, ...]:
        """One or two ordinary blocks."""
        table: list[AnyBlock] = [blocks.Linear(), blocks.Mlp(), blocks.Linear(bias=False)]
        if width > 2:
            # normalising one or two values gives the same for every sample: microbatches would not differ
            table.append(blocks.Norm())
        if sequence:
            table.append(blocks.Attention())
        chosen = [self.pick(table)]
        if self.pick([False, True]):
            chosen.append(self.pick(table))
        # a stage without a map would pass its input on unchanged and hide swapped stages
        if all(isinstance(block, blocks.Norm) for block in chosen):
            chosen.append(blocks.Linear())
        return tuple(chosen)


def usual_dtypes(boundary: BoundaryClaim) -> tuple[FloatType, ...]:
    """The dtypes of a model that is not about dtypes, as often as they are drawn: mostly float64, where claimed."""
    usual: FloatType = "float64" if "float64" in boundary.dtypes else "float32"
    return (usual, usual, usual, "float32") if "float32" in boundary.dtypes else (usual,)
