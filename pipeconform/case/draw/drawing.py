"""One case being drawn: choices from tables of our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from hypothesis import strategies as st

from pipeconform.adapter import Placement, ScheduleClaim
from pipeconform.case import blocks
from pipeconform.case.blocks import AnyBlock
from pipeconform.case.case import World
from pipeconform.case.draw.sizes import edges, replicated_shapes, shapes, some_m, tensor_shapes
from pipeconform.case.focus import REPLICATED, TENSOR_PARALLEL, Focus, Limits

__all__ = ["Draw", "Drawing"]

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[T]], T]


class Drawing:
    """One case being drawn: tables and what has been decided so far."""

    def __init__(self, draw: Draw[object], limits: Limits, claim: ScheduleClaim, focus: Focus) -> None:
        self._draw, self.limits, self.claim, self.focus = draw, limits, claim, focus
        self.features = limits.capabilities.features
        self.num_ranks = 0
        """p, once the shape is drawn."""
        self.num_replicas = 1
        """Likewise."""
        self.num_tensor_ranks = 1
        """Likewise."""

    def pick(self, table: Sequence[T]) -> T:
        """One entry of a table; shrinks toward the first."""
        choice: T = self._draw(st.sampled_from(table))  # type: ignore[assignment]
        return choice

    def shape(self) -> tuple[int, int, int]:
        """p, v and m that the schedule takes, or may refuse where that is the subject."""
        if self.focus is Focus.EDGE:
            return self.pick(self.pick(edges(self.limits, self.claim)))
        if self.focus in REPLICATED:
            p, v, self.num_replicas = self.pick(replicated_shapes(self.limits, self.claim, self.focus))
            self.num_ranks = p
            return p, v, self.pick(some_m(self.claim, p, v))
        if self.focus in TENSOR_PARALLEL:
            table = tensor_shapes(self.limits, self.claim, self.focus)
            p, v, self.num_replicas, self.num_tensor_ranks = self.pick(table)
            self.num_ranks = p
            return p, v, self.pick(some_m(self.claim, p, v))
        p, v = self.pick(shapes(self.limits, self.claim, self.focus))
        self.num_ranks = p
        taken = some_m(self.claim, p, v)
        if self.focus is Focus.UNEVEN:  # one microbatch cannot be smaller than another
            taken = [m for m in taken if m > 1] or taken
        return p, v, self.pick(taken)

    def world(self, p: int) -> World:
        """Mostly the whole world; sometimes a pipeline among bystanders that need not begin at rank 0.

        Where traffic is looked at it is the other way round: only among bystanders is the default group another one.
        """
        if self.focus is Focus.MISPLACED:
            other: Literal["loop", "v"] = "v" if self.claim.placement is Placement.LOOP else "loop"
            return World(size=p, pipeline_ranks=tuple(range(p)), placement=other)
        room = self.limits.max_ranks - p
        if not self.limits.capabilities.sub_groups or room < 1:
            return World(size=p, pipeline_ranks=tuple(range(p)))
        seldom = [0, 0, 0, 1, min(2, room), min(2, room)]
        extra = self.pick([1, 1, min(2, room), 0] if self.focus is Focus.TRAFFIC else seldom)
        if not extra:
            return World(size=p, pipeline_ranks=tuple(range(p)))
        size = p + extra
        starts = [tuple(range(extra, size))]
        if size >= 2 * p:
            starts.append(tuple(range(1, 2 * p, 2)))
        if p > 1:
            starts.append((0, *range(extra + 1, size)))
        return World(size=size, pipeline_ranks=self.pick(starts))

    def blocks(self, sequence: int, width: int) -> tuple[AnyBlock, ...]:
        """One or two ordinary blocks."""
        table: list[AnyBlock] = [blocks.Linear(), blocks.Mlp(), blocks.Linear(bias=False)]
        if width > 2:
            # one or two values normalised are the same for every sample: microbatches would not differ
            table.append(blocks.Norm())
        if sequence:
            table.append(blocks.Attention())
        chosen = [self.pick(table)]
        if self.pick([False, True]):
            chosen.append(self.pick(table))
        # a stage without a map would let a boundary pass unchanged and hide a swap
        if all(isinstance(block, blocks.Norm) for block in chosen):
            chosen.append(blocks.Linear())
        return tuple(chosen)
