"""ZB-V: zero bubble at 1F1B's memory, with two stages per rank in a V.

Source: Qi et al., arXiv 2401.10241, section 6. Placement: V, so rank r owns stage r ("down") and stage
2p−1−r ("up"). Closed forms for rank r, with n = max(m, 2p−1) microbatches (see below):

1. 2·(p−r) − 1 times F down
2. r times F up, F down
3. p − r times F up, I up, W up
4. until all forwards are done: F down (while there is one), I down, W down, F up, I up, W up
5. r times I down, I up
6. p − r times I down, W down
7. the W that are left, up before down

* in flight on every rank, up to I or W: 2p stages' activations, the memory of 1F1B's first rank
* span bubble: 0 if F = I = W (and m ≥ 2p−1)

With m < 2p−1 the table is that of 2p−1 microbatches without the excess ones, as torch does it.
"""

from __future__ import annotations

from pipeconform.schedule.actions import MAX_INDEX, Action, Kind
from pipeconform.schedule.families.family import Bubble, Family, Size, by_rank, two_stages_per_rank


class Writer:
    """Writes one rank's list, with microbatches from 0 for each (stage, kind); may leave out those past a limit."""

    def __init__(self, *, num_microbatches: int | None = None) -> None:
        self.actions: list[Action] = []
        self._stop = MAX_INDEX if num_microbatches is None else num_microbatches
        self._next: dict[tuple[int, Kind], int] = {}

    def peek(self, stage: int, kind: Kind) -> int:
        """The next microbatch."""
        return self._next.get((stage, kind), 0)

    def take(self, stage: int, kind: Kind) -> Action:
        """The next action, counted but not written."""
        microbatch = self.peek(stage, kind)
        self._next[stage, kind] = microbatch + 1
        return Action(stage, kind, microbatch)

    def write(self, stage: int, *kinds: Kind) -> None:
        """Append the next action of each kind; count it only if there is no such microbatch."""
        for kind in kinds:
            if self.peek(stage, kind) < self._stop:
                self.actions.append(self.take(stage, kind))
            else:
                self._next[stage, kind] += 1


def rank_actions(rank: int, size: Size) -> list[Action]:
    """One rank's list."""
    p, _, m = size
    n = max(m, 2 * p - 1)
    down, up = rank, 2 * p - 1 - rank
    f, i, w = Kind.F, Kind.I, Kind.W
    out = Writer(num_microbatches=m)
    for _ in range(2 * (p - rank) - 1):  # Step 1
        out.write(down, f)
    for _ in range(rank):  # Step 2
        out.write(up, f)
        out.write(down, f)
    for _ in range(p - rank):  # Step 3
        out.write(up, f, i, w)
    while out.peek(up, f) < n:  # Step 4
        out.write(down, f)
        out.write(down, i, w)
        out.write(up, f, i, w)
    for _ in range(rank):  # Step 5
        out.write(down, i)
        out.write(up, i)
    for _ in range(p - rank):  # Step 6
        out.write(down, i, w)
    for stage in (up, down):  # Step 7
        for _ in range(out.peek(stage, w), n):
            out.write(stage, w)
    return out.actions


def _in_flight(rank: int, size: Size) -> int:
    return min(2 * size.num_ranks, 2 * size.num_microbatches)


FAMILY = Family(
    name="zb_v",
    title="ZB-V",
    source="arXiv 2401.10241, section 6",
    placement="v",
    splits_backward=True,
    refuse=two_stages_per_rank,
    build=by_rank(rank_actions, style="v"),
    in_flight="min(2p, 2m)",
    in_flight_input=_in_flight,
    in_flight_weight=_in_flight,
    bubble=Bubble(
        kind="span",
        formula="0",
        bound=lambda size, cost: 0.0,
        exact=True,
        holds=lambda size, cost: (
            size.num_microbatches >= 2 * size.num_ranks - 1
            and cost.forward == cost.input_grad == cost.weight_grad
        ),
    ),
)
