"""GPipe: all forwards, then all backwards.

Source: Huang et al., arXiv 1811.06965. Placement: loop with one stage per rank.

* order on every rank: F of microbatches 0 … m−1, then B of 0 … m−1
* in flight: m on every rank
* makespan bubble: (p−1)·(F + B) on every rank, a share (p−1)/(m+p−1) of the makespan

The order of the backwards changes neither memory nor bubble and is left free; ascending is what engines use.
"""

from __future__ import annotations

from pipeconform.schedule.actions import Action, Kind
from pipeconform.schedule.families.family import Bubble, Family, Size, by_rank, one_stage_per_rank


def rank_actions(rank: int, size: Size) -> list[Action]:
    """One rank's list."""
    m = size.num_microbatches
    # Step 1: F of every microbatch.
    actions = [Action(rank, Kind.F, k) for k in range(m)]
    # Step 2: B of every microbatch.
    return actions + [Action(rank, Kind.B, k) for k in range(m)]


FAMILY = Family(
    name="gpipe",
    title="GPipe",
    source="arXiv 1811.06965",
    placement="loop",
    refuse=one_stage_per_rank,
    build=by_rank(rank_actions, style="loop"),
    in_flight="m",
    in_flight_input=lambda rank, size: size.num_microbatches,
    in_flight_weight=lambda rank, size: size.num_microbatches,
    bubble=Bubble(
        kind="makespan",
        formula="(p−1)·(F + B)",
        bound=lambda size, cost: (size.num_ranks - 1) * cost.total,
        exact=True,
    ),
    free_backward_order=True,
)
