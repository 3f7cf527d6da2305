"""ZB-H2: no bubble between a rank's first and last action, for up to twice 1F1B's memory.

Source: Qi et al., arXiv 2401.10241, section 2.2 ("ZB2P" in its repository). Placement: loop with one stage
per rank.

* warm-up forwards on rank r: min(m, 2·(p−1−r) + 1), so that the first I arrives when they are done
* then I, W, F in turn; the k-th W follows the (k + 2r)-th I, so that every rank holds 2p−1 activations;
  without F, then without I, once there is none left
* in flight on rank r: up to I 2·(p−1−r) + 1; up to W 2p−1
* span bubble: (p−1)·(F + I − 2·W), so 0 if F = I = W (and m ≥ 2p−1); the makespan still has the staggered
  starts and ends
"""

from __future__ import annotations

from pipeconform.schedule.actions import Action, Kind
from pipeconform.schedule.families.family import Bubble, Family, Size, by_rank, one_stage_per_rank


def _warm_up(rank: int, size: Size) -> int:
    return min(size.num_microbatches, 2 * (size.num_ranks - 1 - rank) + 1)


def rank_actions(rank: int, size: Size) -> list[Action]:
    """One rank's list; W lags 2r steps behind I."""
    m, num_warm_up, lag = size.num_microbatches, _warm_up(rank, size), 2 * rank
    # Step 1: warm up.
    actions = [Action(rank, Kind.F, k) for k in range(num_warm_up)]
    for k in range(m):
        # Step 2: I, the W that lags, F; each while there is one.
        actions.append(Action(rank, Kind.I, k))
        if k >= lag:
            actions.append(Action(rank, Kind.W, k - lag))
        if num_warm_up + k < m:
            actions.append(Action(rank, Kind.F, num_warm_up + k))
    # Step 3: the W that are left.
    return actions + [Action(rank, Kind.W, k) for k in range(max(0, m - lag), m)]


FAMILY = Family(
    name="zb_h2",
    title="ZB-H2",
    source="arXiv 2401.10241, section 2.2",
    placement="loop",
    splits_backward=True,
    refuse=one_stage_per_rank,
    build=by_rank(rank_actions, style="loop"),
    in_flight="min(m, 2·(p−1−r) + 1) to I, min(m, 2p−1) to W",
    in_flight_input=_warm_up,
    in_flight_weight=lambda rank, size: min(size.num_microbatches, 2 * size.num_ranks - 1),
    bubble=Bubble(
        kind="span",
        formula="(p−1)·(F + I − 2·W)",
        bound=lambda size, cost: (
            (size.num_ranks - 1) * (cost.forward + cost.input_grad - 2 * cost.weight_grad)
        ),
        exact=True,
        holds=lambda size, cost: (
            size.num_microbatches >= 2 * size.num_ranks - 1
            and cost.forward == cost.input_grad == cost.weight_grad
        ),
    ),
)
