"""DualPipe and DualPipeV: forwards and backwards of two streams run as overlapped pairs.

Sources: DeepSeek-AI, arXiv 2412.19437, and its DualPipe repository; DualPipeV is the half of it that the
zero-bubble authors noted to be enough.

*DualPipeV*: V placement, two stages per rank; stream 0 is the rank's down stage, stream 1 its up stage; a
"side" has h = p ranks. *DualPipe*: p even, two chains in opposite directions, each with half of the
microbatches; stream 0 is the chain that enters at the rank's own half; a side has h = p/2 ranks. With q
the distance to the entry of stream 0 and n microbatches per stream, both run:

1. 2·(h−q−1) times F0
2. q+1 times F0, F1
3. h−q−1 times I1, W, F1
4. n − 2h + q + 1 times (F0 with B1), (F1 with B0), each pair as one; the very first pair of the innermost
   ranks (q = h−1) runs as F0, B1 instead
5. h−q−1 times B1, (F1 with B0)
6. q+1 times B1, B0; from the middle on I instead of B (for odd q from B1 of number ⌊(q+1)/2⌋ on, for even
   q from the B0 after it)
7. h−q−1 times W, I0
8. the q+1 W that are left, oldest first

* in flight on every rank: 2h + 1 stages' activations
* makespan bubble: (h−1)·(F&B + B − 3·W) for a pair of duration F&B = F + B
"""

from __future__ import annotations

from collections import deque

from pipeconform.schedule.actions import Action, Kind, overlap
from pipeconform.schedule.families.family import Bubble, Family, Size, Stage, by_rank
from pipeconform.schedule.families.zb_v import Writer
from pipeconform.schedule.table import Table


class _PairWriter(Writer):
    """Also writes overlapped pairs, and keeps track of the W still to do; I and B count together."""

    def __init__(self) -> None:
        super().__init__()
        self._owed: deque[Action] = deque()

    def backward(self, stage: int, *, split: bool = False) -> None:
        action = self.take(stage, Kind.B)
        if split:
            self._owed.append(action._replace(kind=Kind.W))
            action = action._replace(kind=Kind.I)
        self.actions.append(action)

    def weight(self) -> None:
        self.actions.append(self._owed.popleft())

    def pair(self, forward: int, backward: int) -> None:
        self.actions.append(overlap(self.take(forward, Kind.F), self.take(backward, Kind.B)))


def stream_actions(q: int, h: int, n: int, *, zero: int, one: int) -> list[Action]:
    """The list of a rank at distance q of h, with stages ``zero`` and ``one`` as streams 0 and 1."""
    out = _PairWriter()
    for _ in range(2 * (h - q - 1)):  # Step 1
        out.write(zero, Kind.F)
    for _ in range(q + 1):  # Step 2
        out.write(zero, Kind.F)
        out.write(one, Kind.F)
    for _ in range(h - q - 1):  # Step 3
        out.backward(one, split=True)
        out.weight()
        out.write(one, Kind.F)
    for k in range(n - 2 * h + q + 1):  # Step 4
        if k == 0 and q == h - 1:
            out.write(zero, Kind.F)
            out.backward(one)
        else:
            out.pair(zero, one)
        out.pair(one, zero)
    for _ in range(h - q - 1):  # Step 5
        out.backward(one)
        out.pair(one, zero)
    middle, odd = (q + 1) // 2, q % 2
    for k in range(q + 1):  # Step 6
        out.backward(one, split=k > middle or (k == middle and odd == 1))
        out.backward(zero, split=k >= middle)
    for _ in range(h - q - 1):  # Step 7
        out.weight()
        out.backward(zero, split=True)
    for _ in range(q + 1):  # Step 8
        out.weight()
    return out.actions


def rank_actions_v(rank: int, size: Size) -> list[Action]:
    """One rank's list of DualPipeV."""
    p, _, m = size
    return stream_actions(rank, p, m, zero=rank, one=2 * p - 1 - rank)


def build_dualpipe(size: Size) -> Table:
    """DualPipe: chain 0 is stages 0 … p−1 on ranks 0 … p−1, chain 1 stages p … 2p−1 on ranks p−1 … 0."""
    p, _, m = size
    ranks = []
    for rank in range(p):
        chains = (rank, 2 * p - 1 - rank)
        zero, one = chains if rank < p // 2 else chains[::-1]
        ranks.append(stream_actions(min(rank, p - 1 - rank), p // 2, m // 2, zero=zero, one=one))
    placement = (*range(p), *reversed(range(p)))
    return Table.build(ranks, placement=placement, num_microbatches=m // 2, num_chains=2)


def _refuse_v(size: Size) -> str | None:
    if size.stages_per_rank != 2:
        return "it takes two stages per rank"
    return "it needs m ≥ 2p" if size.num_microbatches < 2 * size.num_ranks else None


def _refuse_dualpipe(size: Size) -> str | None:
    p, v, m = size
    if v != 2:
        return "every rank holds one stage of each of the two chains, v = 2"
    if p % 2 or m % 2:
        return "p and m must be even"
    return "it needs m ≥ 2p" if m < 2 * p else None


def _bubble(h: int, cost: Stage) -> float:
    return (h - 1) * (cost.total + cost.backward - 3 * cost.weight_grad)


def _equal(size: Size, cost: Stage) -> bool:
    return cost.forward == cost.input_grad == cost.weight_grad


DUALPIPE_V = Family(
    name="dualpipe_v",
    title="DualPipeV",
    source="DualPipe repository",
    placement="v",
    splits_backward=True,
    refuse=_refuse_v,
    build=by_rank(rank_actions_v, style="v"),
    in_flight="2p + 1",
    in_flight_input=lambda rank, size: 2 * size.num_ranks + 1,
    in_flight_weight=lambda rank, size: 2 * size.num_ranks + 1,
    bubble=Bubble(
        kind="makespan",
        formula="(p−1)·(F&B + B − 3·W)",
        bound=lambda size, cost: _bubble(size.num_ranks, cost),
        holds=_equal,
    ),
)

DUALPIPE = Family(
    name="dualpipe",
    title="DualPipe",
    source="arXiv 2412.19437, DualPipe repository",
    placement="bidirectional",
    splits_backward=True,
    refuse=_refuse_dualpipe,
    build=build_dualpipe,
    in_flight="p + 1",
    in_flight_input=lambda rank, size: size.num_ranks + 1,
    in_flight_weight=lambda rank, size: size.num_ranks + 1,
    bubble=Bubble(
        kind="makespan",
        formula="(p/2−1)·(F&B + B − 3·W)",
        bound=lambda size, cost: _bubble(size.num_ranks // 2, cost),
        holds=_equal,
    ),
)
