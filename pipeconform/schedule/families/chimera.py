"""Chimera: two copies of the model run in opposite directions, each filling the other's bubbles.

Source: Li and Hoefler, arXiv 2107.06925. Placement: bidirectional, p even: stage r of the *down* chain on
rank r, stage p+j of the *up* chain on rank p−1−j, so that every rank holds two stages (v = 2). Each unit of
p microbatches gives p/2 to either chain; in slots of one F or one B, the down chain's microbatch k of unit
u runs on rank r

* F in slot r + 2k + 2p·u
* B in slot 2p−1−r + 2k + 2p·u

and the up chain's with p−1−r in place of r. For even p no two meet in one slot. The order of the slots is
the table; units follow one another directly.

* in flight on rank r: min(p/2, p−r) + min(p/2, r+1), from p/2 + 1 at the ends to p in the middle
* makespan bubble: (p−2)·F if F = B (m a multiple of p), half of it in the forwards
"""

from __future__ import annotations

from pipeconform.schedule.actions import Action, Kind
from pipeconform.schedule.families.family import Bubble, Family, Size
from pipeconform.schedule.table import Table


def rank_actions(rank: int, size: Size) -> list[Action]:
    """One rank's list."""
    p, _, m = size
    slots: list[tuple[int, Action]] = []
    for stage, distance in ((rank, rank), (2 * p - 1 - rank, p - 1 - rank)):
        for microbatch in range(m // 2):
            unit, k = divmod(microbatch, p // 2)
            begin = 2 * k + 2 * p * unit
            slots.append((begin + distance, Action(stage, Kind.F, microbatch)))
            slots.append((begin + 2 * p - 1 - distance, Action(stage, Kind.B, microbatch)))
    return [action for _, action in sorted(slots)]


def build(size: Size) -> Table:
    """The whole table."""
    p, _, m = size
    return Table.build(
        [rank_actions(rank, size) for rank in range(p)],
        placement=(*range(p), *reversed(range(p))),
        num_microbatches=m // 2,
        num_chains=2,
    )


def _refuse(size: Size) -> str | None:
    p, v, m = size
    if v != 2:
        return "every rank holds one stage of each of the two chains, v = 2"
    if p % 2:
        return "p must be even"
    return "p must divide m" if m % p else None


def _in_flight(rank: int, size: Size) -> int:
    p = size.num_ranks
    return min(p // 2, p - rank) + min(p // 2, rank + 1)


FAMILY = Family(
    name="chimera",
    title="Chimera",
    source="arXiv 2107.06925",
    placement="bidirectional",
    refuse=_refuse,
    build=build,
    in_flight="min(p/2, p−r) + min(p/2, r+1)",
    in_flight_input=_in_flight,
    in_flight_weight=_in_flight,
    bubble=Bubble(
        kind="makespan",
        formula="(p−2)·F",
        bound=lambda size, cost: (size.num_ranks - 2) * cost.forward,
        exact=True,
        holds=lambda size, cost: cost.forward == cost.backward,
    ),
)
