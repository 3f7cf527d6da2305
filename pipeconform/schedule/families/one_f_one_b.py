"""1F1B (PipeDream-Flush, DAPPLE): one forward, one backward.

Sources: Narayanan et al., arXiv 2006.09503; Fan et al., arXiv 2007.01045. Placement: loop with one stage
per rank.

* warm-up forwards on rank r: min(m, p−1−r); then F, B in turn while forwards are left; then the rest of
  the backwards
* in flight on rank r: min(m, p−r)
* makespan bubble: (p−1)·(F + B) on every rank, as GPipe's
"""

from __future__ import annotations

from pipeconform.schedule.actions import Action, Kind
from pipeconform.schedule.families.family import Bubble, Family, Size, by_rank, one_stage_per_rank


def rank_actions(rank: int, size: Size) -> list[Action]:
    """One rank's list."""
    p, _, m = size
    warm_up = min(m, p - 1 - rank)
    # Step 1: fill the pipeline below this rank.
    actions = [Action(rank, Kind.F, k) for k in range(warm_up)]
    # Step 2: one forward, one backward.
    for k in range(m - warm_up):
        actions += (Action(rank, Kind.F, warm_up + k), Action(rank, Kind.B, k))
    # Step 3: drain.
    return actions + [Action(rank, Kind.B, k) for k in range(m - warm_up, m)]


def _in_flight(rank: int, size: Size) -> int:
    return min(size.num_microbatches, size.num_ranks - rank)


FAMILY = Family(
    name="one_f_one_b",
    title="1F1B",
    source="arXiv 2006.09503, 2007.01045",
    placement="loop",
    refuse=one_stage_per_rank,
    build=by_rank(rank_actions, style="loop"),
    in_flight="min(m, p−r)",
    in_flight_input=_in_flight,
    in_flight_weight=_in_flight,
    bubble=Bubble(
        kind="makespan",
        formula="(p−1)·(F + B)",
        bound=lambda size, cost: (size.num_ranks - 1) * cost.total,
        exact=True,
    ),
)
