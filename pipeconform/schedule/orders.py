"""Orders that belong to no named schedule: any order in which the computations of a step can run, chosen by a number.

The choice is the same on every machine and under every release of Python: of `random.Random` only ``random()`` is used,
whose sequence for a seed is documented to stay.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from pipeconform.schedule.actions import Action, Kind
from pipeconform.schedule.table import Table

__all__ = ["some_order"]

_Key = tuple[Kind, int, int]
"""Kind, stage and microbatch."""


def some_order(
    placement: Sequence[int], *, num_microbatches: int, seed: int, splits: bool, in_turn: bool
) -> Table:
    """A table of one training step: at each time, any of the computations that can run then is the next one.

    Args:
        placement: The rank of each stage; every rank from 0 up has at least one.
        num_microbatches: m.
        seed: Which of the orders.
        splits: Whether about half of the backwards are in two parts, I and W.
        in_turn: Whether every stage takes the microbatches from 0 to m-1, in its forwards and in its backwards.
    """
    chance = random.Random(seed)  # noqa: S311 (no secret: the same seed must give the same order)
    last, m = len(placement) - 1, num_microbatches
    pairs = [(s, k) for s in range(last + 1) for k in range(m)]
    split = {pair for pair in pairs if splits and chance.random() < 0.5}
    done: set[_Key] = set()

    def backward(s: int, k: int) -> _Key:
        return (Kind.I if (s, k) in split else Kind.B, s, k)

    def needs(key: _Key) -> Iterator[_Key]:
        kind, s, k = key
        if kind is Kind.F:
            if s > 0:
                yield (Kind.F, s - 1, k)
            if in_turn and k > 0:
                yield (Kind.F, s, k - 1)
            return
        if kind is Kind.W:
            yield (Kind.I, s, k)
            return
        yield (Kind.F, s, k)
        if s < last:
            yield backward(s + 1, k)
        if in_turn and k > 0:
            yield backward(s, k - 1)

    def frees(key: _Key) -> Iterator[_Key]:
        """The computations that may be able to run once this one is done."""
        kind, s, k = key
        if kind is Kind.F:
            yield backward(s, k)
            if s < last:
                yield (Kind.F, s + 1, k)
            if in_turn and k < m - 1:
                yield (Kind.F, s, k + 1)
        elif kind is not Kind.W:
            if kind is Kind.I:
                yield (Kind.W, s, k)
            if s > 0:
                yield backward(s - 1, k)
            if in_turn and k < m - 1:
                yield backward(s, k + 1)

    rows: list[list[Action]] = [[] for _ in range(max(placement) + 1)]
    ready: list[_Key] = [(Kind.F, 0, k) for k in range(1 if in_turn else m)]
    while ready:
        drawn = [ready[int(chance.random() * len(ready))] for _ in range(1 if in_turn else 2)]
        # of two, the later microbatch: otherwise short steps often take microbatches in turn by chance
        kind, s, k = key = max(drawn, key=lambda one: one[2])
        ready.remove(key)
        done.add(key)
        rows[placement[s]].append(Action(s, kind, k))
        ready += [one for one in frees(key) if all(need in done for need in needs(one))]
    return Table.build(rows, placement=tuple(placement), num_microbatches=m)
