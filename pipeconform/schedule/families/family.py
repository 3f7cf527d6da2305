"""Schedule families: a generator of tables, and the properties that the family's source claims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pipeconform.errors import UsageError
from pipeconform.schedule import placement
from pipeconform.schedule.actions import Action
from pipeconform.schedule.table import Table


class Size(NamedTuple):
    """The size of a table."""

    num_ranks: int
    """p."""
    stages_per_rank: int
    """v."""
    num_microbatches: int
    """m, of the whole step (a bidirectional table's chains share them)."""


class Stage(NamedTuple):
    """The cost of one stage for one microbatch, in any time unit; a full backward costs I + W."""

    forward: float
    input_grad: float
    weight_grad: float

    @property
    def backward(self) -> float:
        """Duration of a full backward."""
        return self.input_grad + self.weight_grad

    @property
    def total(self) -> float:
        """F + I + W."""
        return self.forward + self.backward


RankActions = Callable[[int, Size], list[Action]]
PerRank = Callable[[int, Size], int]


@dataclass(frozen=True, kw_only=True)
class Bubble:
    """An idle-time bound and its convention.

    ``kind`` says what is bounded, for the worst rank: the *makespan* bubble (end of the last action of all
    minus start of the first of all, minus the rank's work) or the *span* bubble (end of the rank's own last
    action minus start of its own first, minus its work). Both in time units per step.
    """

    kind: Literal["makespan", "span"]
    formula: str
    """The bound as text, in p, v, m and the costs F, B, I, W of one *stage* (a v-th of a rank's layers)."""
    bound: Callable[[Size, Stage], float]
    exact: bool = False
    """Whether the bubble equals the bound (for equal stages and free communication)."""
    holds: Callable[[Size, Stage], bool] = lambda size, stage: True
    """Whether the source's claim applies at a size and costs."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A named schedule: how to generate its table, and its properties."""

    name: str
    title: str
    source: str
    """The paper (arXiv id) or repository that defines it."""
    placement: Literal["loop", "v", "bidirectional"]
    splits_backward: bool = False
    """Whether it uses I and W."""
    forward_only: bool = False
    refuse: Callable[[Size], str | None]
    """Why a size is not allowed, or None."""
    build: Callable[[Size], Table]
    in_flight: str
    """The bounds below as text, for rank r in p, v, m and the microbatches per round g."""
    in_flight_input: PerRank
    """Bound on (stage, microbatch) pairs a rank holds between F and I (or B)."""
    in_flight_weight: PerRank
    """Bound on those between F and W (or B)."""
    bubble: Bubble | None = None
    free_backward_order: bool = False
    """Whether a stage may run the backwards of its microbatches in any order (with the same memory and bubble)."""

    def generate(self, *, num_ranks: int, stages_per_rank: int, num_microbatches: int) -> Table:
        """The compute-only table of one size.

        Raises:
            UsageError: The family has no table of this size; the message says why.
        """
        size = Size(num_ranks, stages_per_rank, num_microbatches)
        if reason := self.refusal(size):
            p, v, m = size
            raise UsageError(f"{self.name} has no table for p={p}, v={v}, m={m}: {reason}")
        return self.build(size)

    def refusal(self, size: Size) -> str | None:
        """Why a size is not allowed, or None."""
        if min(size) < 1:
            return "p, v and m are at least 1"
        return self.refuse(size)


def by_rank(rank_actions: RankActions, *, style: Literal["loop", "v"]) -> Callable[[Size], Table]:
    """A builder from a function that writes one rank's list."""

    def build(size: Size) -> Table:
        p, v, m = size
        place = placement.loop if style == "loop" else placement.v
        return Table.build(
            [rank_actions(rank, size) for rank in range(p)],
            placement=place(p, stages_per_rank=v),
            num_microbatches=m,
        )

    return build


def any_size(size: Size) -> str | None:
    """Refuse nothing."""
    return None


def one_stage_per_rank(size: Size) -> str | None:
    """Refuse v ≠ 1."""
    return None if size.stages_per_rank == 1 else "it takes one stage per rank"


def two_stages_per_rank(size: Size) -> str | None:
    """Refuse v ≠ 2."""
    return None if size.stages_per_rank == 2 else "it takes two stages per rank"
