"""Hanayo: the chain of stages runs down and up the ranks like a wave, W times.

Source: Liu et al., arXiv 2308.15762 (SC '23). It takes two data-parallel copies of Chimera and swaps halves
between them: where a copy's chain would go on to the other half of the ranks, it turns round instead. What is
left on p ranks is *one* chain, nothing of it held twice. Placement: V with v = 2W stages per rank, S = p·v
stages; the paper's "wave = W". The slots are those of ``chimera`` after the swap, continued to W waves: a unit
has p microbatches; in slots of one F or one B, microbatch k of unit u runs on stage s

* F in slot s + 2k + 2S·u
* B in slot 2S−1−s + 2k + 2S·u

On one rank no two meet in one slot, for any W. The order of the slots is the table; units follow one another
directly, as Chimera's do (the paper treats one unit, m = p).

* in flight on rank r: v·p − (p−1−r)
* makespan bubble, F and B of one *stage*, full B: 2·(p−1)·B if m = p and B ≥ F, and for every m if F = B. At
  B = 2F and m = p it is a share (2p−2) / (3pW + 2p−2) of the makespan. For B ≠ F and m > p idle slots appear
  between units; nothing is claimed

What this rests on: the order follows from the swap above and Chimera's slots, and a test compares the two; the
share of idle time stays below (2p−2) / (3pW + p−1), the formula quoted from the paper elsewhere (same W, B = 2F).
It has not been compared with the authors' own program.
"""

from __future__ import annotations

from pipeconform.schedule import placement
from pipeconform.schedule.actions import Action, Kind
from pipeconform.schedule.families.family import Bubble, Family, Size, Stage, by_rank


def rank_actions(rank: int, size: Size) -> list[Action]:
    """One rank's list."""
    p, v, m = size
    num_stages = p * v
    slots: list[tuple[int, Action]] = []
    for stage in placement.stages_of(placement.v(p, stages_per_rank=v), rank=rank):
        for microbatch in range(m):
            unit, k = divmod(microbatch, p)
            begin = 2 * k + 2 * num_stages * unit
            slots.append((begin + stage, Action(stage, Kind.F, microbatch)))
            slots.append((begin + 2 * num_stages - 1 - stage, Action(stage, Kind.B, microbatch)))
    return [action for _, action in sorted(slots)]


def _refuse(size: Size) -> str | None:
    p, v, m = size
    if v % 2:
        return "a wave goes down and up, so v must be even"
    return "p must divide m" if m % p else None


def _in_flight(rank: int, size: Size) -> int:
    p, v, _ = size
    return p * v - (p - 1 - rank)


def _holds(size: Size, cost: Stage) -> bool:
    one_unit = size.num_microbatches == size.num_ranks and cost.backward >= cost.forward
    return one_unit or cost.forward == cost.backward


FAMILY = Family(
    name="hanayo",
    title="Hanayo",
    source="arXiv 2308.15762",
    placement="v",
    refuse=_refuse,
    build=by_rank(rank_actions, style="v"),
    in_flight="v·p − (p−1−r)",
    in_flight_input=_in_flight,
    in_flight_weight=_in_flight,
    bubble=Bubble(
        kind="makespan",
        formula="2·(p−1)·B",
        bound=lambda size, cost: 2 * (size.num_ranks - 1) * cost.backward,
        exact=True,
        holds=_holds,
    ),
)
