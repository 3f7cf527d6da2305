"""Forward only: evaluation.

Source: none needed; every pipeline evaluates so. Placement: loop with any number of stages per rank.

* order on every rank: rounds of p microbatches; within a round the rank's stages ascending (with one
  stage per rank simply F of 0 … m−1)
* in flight: nothing is kept for a backward, so no bound is claimed beyond v·m
* makespan bubble: (p−1)·F if p divides m or v = 1; in general not claimed
"""

from __future__ import annotations

from pipeconform.schedule.actions import Action, Kind
from pipeconform.schedule.families.family import Bubble, Family, Size, any_size, by_rank


def rank_actions(rank: int, size: Size) -> list[Action]:
    """One rank's list."""
    p, v, m = size
    return [
        Action(lap * p + rank, Kind.F, k)
        for start in range(0, m, p)
        for lap in range(v)
        for k in range(start, min(start + p, m))
    ]


FAMILY = Family(
    name="forward_only",
    title="Forward only",
    source="every pipeline",
    placement="loop",
    forward_only=True,
    refuse=any_size,
    build=by_rank(rank_actions, style="loop"),
    in_flight="v·m",
    in_flight_input=lambda rank, size: size.stages_per_rank * size.num_microbatches,
    in_flight_weight=lambda rank, size: size.stages_per_rank * size.num_microbatches,
    bubble=Bubble(
        kind="makespan",
        formula="(p−1)·F",
        bound=lambda size, cost: (size.num_ranks - 1) * cost.forward,
        exact=True,
        holds=lambda size, cost: size.stages_per_rank == 1 or size.num_microbatches % size.num_ranks == 0,
    ),
)
