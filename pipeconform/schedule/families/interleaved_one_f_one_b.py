"""Interleaved 1F1B: one forward, one backward over v stages per rank.

Source: Narayanan et al., arXiv 2104.04473. Placement: loop. Both warm-up counts in use are offered:

* ``interleaved_one_f_one_b`` (torch): rounds of g = m / max(1, ⌊m/p⌋) microbatches; warm-up forwards on
  rank r: min(v·m, (v−1)·g + 2·(p−1−r))
* ``interleaved_one_f_one_b_megatron`` (Megatron-LM): rounds of p, so p must divide m; the same warm-up
  count, except that m = p makes *all* v·m forwards warm-up

After the warm-up: F, B in turn, then the rest of the backwards.

* in flight on rank r: min(v·m, warm-up + 1)
* makespan bubble if p divides m: (p−1)·(F + B) with F, B of one *stage*, v times less than 1F1B's
"""

from __future__ import annotations

from collections.abc import Callable

from pipeconform.schedule.actions import Action, Kind
from pipeconform.schedule.families.family import Bubble, Family, Size, by_rank
from pipeconform.schedule.families.interleaving import backward, forward, refuse_uneven_rounds, round_size

WarmUp = Callable[[int, Size], int]


def torch_warm_up(rank: int, size: Size) -> int:
    """Forwards before the first backward, less the one that is paired with it."""
    p, v, m = size
    return min(v * m, (v - 1) * round_size(size) + 2 * (p - 1 - rank))


def megatron_warm_up(rank: int, size: Size) -> int:
    """As `torch_warm_up`, but all forwards of a single round are warm-up."""
    p, v, m = size
    return v * m if m == p else torch_warm_up(rank, size)


def rank_actions(rank: int, size: Size, *, warm_up: WarmUp) -> list[Action]:
    """One rank's list."""
    total, group = size.stages_per_rank * size.num_microbatches, round_size(size)
    num_warm_up = warm_up(rank, size)

    def f(k: int) -> Action:
        return forward(k, rank=rank, size=size, group=group)

    def b(k: int) -> Action:
        return backward(k, kind=Kind.B, rank=rank, size=size, group=group)

    # Step 1: warm up.
    actions = [f(k) for k in range(num_warm_up)]
    # Step 2: one forward, one backward.
    for k in range(total - num_warm_up):
        actions += (f(num_warm_up + k), b(k))
    # Step 3: drain.
    return actions + [b(k) for k in range(total - num_warm_up, total)]


def _refuse_partial_rounds(size: Size) -> str | None:
    return "p must divide m" if size.num_microbatches % size.num_ranks else None


def _family(
    name: str, title: str, warm_up: WarmUp, *, bound: str, refuse: Callable[[Size], str | None]
) -> Family:
    def in_flight(rank: int, size: Size) -> int:
        return min(size.stages_per_rank * size.num_microbatches, warm_up(rank, size) + 1)

    return Family(
        name=name,
        title=title,
        source="arXiv 2104.04473",
        placement="loop",
        refuse=refuse,
        build=by_rank(lambda rank, size: rank_actions(rank, size, warm_up=warm_up), style="loop"),
        in_flight=bound,
        in_flight_input=in_flight,
        in_flight_weight=in_flight,
        bubble=Bubble(
            kind="makespan",
            formula="(p−1)·(F + B)",
            bound=lambda size, cost: (size.num_ranks - 1) * cost.total,
            exact=True,
            holds=lambda size, cost: size.num_microbatches % size.num_ranks == 0,
        ),
    )


FAMILY = _family(
    "interleaved_one_f_one_b",
    "Interleaved 1F1B",
    torch_warm_up,
    bound="min(v·m, (v−1)·g + 2·(p−1−r) + 1)",
    refuse=refuse_uneven_rounds,
)
MEGATRON = _family(
    "interleaved_one_f_one_b_megatron",
    "Interleaved 1F1B, Megatron's warm-up",
    megatron_warm_up,
    bound="v·m if m = p else min(v·m, (v−1)·g + 2·(p−1−r) + 1)",
    refuse=_refuse_partial_rounds,
)
