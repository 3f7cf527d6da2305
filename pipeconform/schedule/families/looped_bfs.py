"""Looped breadth-first: every stage takes all microbatches before the rank's next stage does.

Source: Lamy-Poirier, arXiv 2211.05953. Placement: loop with any number of stages per rank.

* order on every rank: for each of its stages ascending, F of 0 … m−1; then for each descending, B of 0 … m−1
* in flight: v·m on every rank, as in GPipe
* makespan bubble if m ≥ p: (p−1)·(F + B) with F, B of one stage

The order of the microbatches backwards changes neither memory nor bubble and is left free; torch's is
descending.
"""

from __future__ import annotations

from pipeconform.schedule.actions import Action, Kind
from pipeconform.schedule.families.family import Bubble, Family, Size, any_size, by_rank


def rank_actions(rank: int, size: Size) -> list[Action]:
    """One rank's list."""
    p, v, m = size
    stages = range(rank, p * v, p)
    # Step 1: all forwards, stage by stage.
    actions = [Action(stage, Kind.F, k) for stage in stages for k in range(m)]
    # Step 2: all backwards, the last stage first.
    return actions + [Action(stage, Kind.B, k) for stage in reversed(stages) for k in range(m)]


FAMILY = Family(
    name="looped_bfs",
    title="Looped breadth-first",
    source="arXiv 2211.05953",
    placement="loop",
    refuse=any_size,
    build=by_rank(rank_actions, style="loop"),
    in_flight="v·m",
    in_flight_input=lambda rank, size: size.stages_per_rank * size.num_microbatches,
    in_flight_weight=lambda rank, size: size.stages_per_rank * size.num_microbatches,
    bubble=Bubble(
        kind="makespan",
        formula="(p−1)·(F + B)",
        bound=lambda size, cost: (size.num_ranks - 1) * cost.total,
        exact=True,
        holds=lambda size, cost: size.num_microbatches >= size.num_ranks or size.stages_per_rank == 1,
    ),
    free_backward_order=True,
)
