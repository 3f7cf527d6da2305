"""Interleaved zero bubble, and its case v = 1, ZB-H1: weight gradients fill the drain.

Source: Qi et al., arXiv 2401.10241 (ZB-H1, "ZB1P" in its repository); over v stages per rank as torch runs
it. Placement: loop. Rounds as in interleaved 1F1B.

* warm-up forwards on rank r: min(v·m, (v−1)·g + (p−1−r)); then F, I in turn; then the rest of the I
* the k-th W follows the (k + r)-th I, so that rank r holds r more activations for W than for I and all
  ranks hold equally many; what is left runs at the end
* in flight on rank r: up to I (v−1)·g + p−r; up to W (v−1)·g + p
* makespan bubble (ZB-H1, W ≤ F = I, m ≥ p): (p−1)·(F + I − W), a third of 1F1B's if F = I = W
"""

from __future__ import annotations

from pipeconform.schedule.actions import Action, Kind
from pipeconform.schedule.families.family import Bubble, Family, Size, by_rank, one_stage_per_rank
from pipeconform.schedule.families.interleaving import backward, forward, refuse_uneven_rounds, round_size


def warm_up(rank: int, size: Size, *, group: int) -> int:
    """Forwards before the first I, less the one that is paired with it."""
    p, v, m = size
    return min(v * m, (v - 1) * group + (p - 1 - rank))


def rank_actions(rank: int, size: Size, *, group: int) -> list[Action]:
    """One rank's list; W lags r steps behind I."""
    total = size.stages_per_rank * size.num_microbatches
    num_warm_up = warm_up(rank, size, group=group)

    def back(k: int, kind: Kind) -> Action:
        return backward(k, kind=kind, rank=rank, size=size, group=group)

    # Step 1: warm up.
    actions = [forward(k, rank=rank, size=size, group=group) for k in range(num_warm_up)]
    for k in range(total):
        # Step 2: one forward, one I; without the forward once there is none left (drain).
        if num_warm_up + k < total:
            actions.append(forward(num_warm_up + k, rank=rank, size=size, group=group))
        actions.append(back(k, Kind.I))
        # Step 3: the W that lags r behind.
        if k >= rank:
            actions.append(back(k - rank, Kind.W))
    # Step 4: the W that are left.
    return actions + [back(k, Kind.W) for k in range(max(0, total - rank), total)]


def _up_to_input(rank: int, size: Size) -> int:
    total = size.stages_per_rank * size.num_microbatches
    return min(total, warm_up(rank, size, group=_group(size)) + 1)


def _up_to_weight(rank: int, size: Size) -> int:
    total = size.stages_per_rank * size.num_microbatches
    return min(total, warm_up(rank, size, group=_group(size)) + 1 + rank)


def _group(size: Size) -> int:
    return size.num_microbatches if size.stages_per_rank == 1 else round_size(size)


FAMILY = Family(
    name="interleaved_zero_bubble",
    title="Interleaved zero bubble",
    source="arXiv 2401.10241; torch for v > 1",
    placement="loop",
    splits_backward=True,
    refuse=refuse_uneven_rounds,
    build=by_rank(lambda rank, size: rank_actions(rank, size, group=round_size(size)), style="loop"),
    in_flight="min(v·m, (v−1)·g + p−r) to I, min(v·m, (v−1)·g + p) to W",
    in_flight_input=_up_to_input,
    in_flight_weight=_up_to_weight,
)

ZB_H1 = Family(
    name="zb_h1",
    title="ZB-H1",
    source="arXiv 2401.10241, section 2.1",
    placement="loop",
    splits_backward=True,
    refuse=one_stage_per_rank,
    build=by_rank(lambda rank, size: rank_actions(rank, size, group=size.num_microbatches), style="loop"),
    in_flight="min(m, p−r) to I, min(m, p) to W",
    in_flight_input=_up_to_input,
    in_flight_weight=_up_to_weight,
    bubble=Bubble(
        kind="makespan",
        formula="(p−1)·(F + I − W)",
        bound=lambda size, cost: (size.num_ranks - 1) * (cost.forward + cost.input_grad - cost.weight_grad),
        holds=lambda size, cost: (
            size.num_microbatches >= size.num_ranks
            and cost.weight_grad <= cost.forward
            and cost.forward == cost.input_grad
        ),
    ),
)
