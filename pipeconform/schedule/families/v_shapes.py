"""V-Half and V-Min: a repeated building block that sets how long activations live.

Source: Qi et al., "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, and its repository.
Placement: V with two stages per rank. In unit time slots (F = I = W = 1) microbatch k starts on rank r at

===========  =======================  =========================
what         V-Half                   V-Min
===========  =======================  =========================
F down       2r + 6k                  r + 6k
F up         3p − 2 − r + 6k          2p − 1 − r + 6k
I up         3p − 1 + d + 2r + 6k     2p + d + r + 6k
I down       6p − 2 + d − r + 6k      4p − 1 + d − r + 6k
===========  =======================  =========================

with d = 3 for even p (V-Half), d = 2 for p divisible by 3 (V-Min), else 0, which keeps the slots of a rank
apart. W fill the free slots, oldest first. The order of the slots is the table.

This is the building block as it stands; the repository goes on to reorder warm-up and drain greedily for a
smaller bubble. The steady state, and so the memory, is the same; no bubble bound is claimed here.

* in flight on every rank, up to W, in stages: V-Half p + 2 (p even) or p + 1, half of ZB-V's; V-Min
  2·⌊(p + 4) / 3⌋, a third
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from pipeconform.schedule.actions import Action, Kind
from pipeconform.schedule.families.family import Family, PerRank, Size, by_rank, two_stages_per_rank

PERIOD = 6
"""Slots per microbatch: F, I and W of two stages."""

Offsets = Callable[[int, int], tuple[int, int, int, int]]


def half_offsets(rank: int, p: int) -> tuple[int, int, int, int]:
    """First slots of F down, F up, I up, I down."""
    d = 3 if p % 2 == 0 else 0
    return 2 * rank, 3 * p - 2 - rank, 3 * p - 1 + d + 2 * rank, 6 * p - 2 + d - rank


def min_offsets(rank: int, p: int) -> tuple[int, int, int, int]:
    """First slots of F down, F up, I up, I down."""
    d = 2 if p % 3 == 0 else 0
    return rank, 2 * p - 1 - rank, 2 * p + d + rank, 4 * p - 1 + d - rank


def rank_actions(rank: int, size: Size, *, offsets: Offsets) -> list[Action]:
    """One rank's list."""
    p, _, m = size
    down, up = rank, 2 * p - 1 - rank
    kinds = ((down, Kind.F), (up, Kind.F), (up, Kind.I), (down, Kind.I))
    # Step 1: repeat the building block.
    blocks = [
        [(first + PERIOD * k, Action(stage, kind, k)) for k in range(m)]
        for first, (stage, kind) in zip(offsets(rank, p), kinds, strict=True)
    ]
    # Step 2: in the order of the slots, put W into the free ones.
    actions: list[Action] = []
    owed: deque[Action] = deque()
    free_from = 0
    for slot, action in heapq.merge(*blocks):
        actions += [owed.popleft() for _ in range(min(slot - free_from, len(owed)))]
        actions.append(action)
        if action.kind is Kind.I:
            owed.append(action._replace(kind=Kind.W))
        free_from = slot + 1
    # Step 3: the W that are left.
    return actions + list(owed)


def _family(name: str, title: str, offsets: Offsets, bound: str, in_flight: PerRank) -> Family:
    return Family(
        name=name,
        title=title,
        source="arXiv 2405.15362",
        placement="v",
        splits_backward=True,
        refuse=two_stages_per_rank,
        build=by_rank(lambda rank, size: rank_actions(rank, size, offsets=offsets), style="v"),
        in_flight=bound,
        in_flight_input=in_flight,
        in_flight_weight=in_flight,
    )


V_HALF = _family(
    "v_half",
    "V-Half",
    half_offsets,
    "min(2m, 2·⌊(p+2)/2⌋)",
    lambda rank, size: min(2 * size.num_microbatches, 2 * ((size.num_ranks + 2) // 2)),
)
V_MIN = _family(
    "v_min",
    "V-Min",
    min_offsets,
    "min(2m, 2·⌊(p+4)/3⌋)",
    lambda rank, size: min(2 * size.num_microbatches, 2 * ((size.num_ranks + 4) // 3)),
)
