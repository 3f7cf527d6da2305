"""What an operation that has not ended is for: what is due between the stages of two ranks.

Nothing has arrived in the memory of a receive that blocks, so nothing can be recognised (`cargo`). But it is known
which stages the two ranks have: if only one boundary is crossed between them in this direction, an operation on a
tensor of the boundary's dtype belongs to it. With two boundaries or none, the answer is unknown. The rank's row of the
schedule's table, if the schedule has one, gives the microbatch: the one that ought to come, not the one that an engine
with another order waits for, and the message says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from pipeconform.observe.traffic.records import Cargo
from pipeconform.ranks.operations import Operation

__all__ = ["Due", "Neighbours", "due"]

What = Literal["input", "output", "input gradient", "output gradient"]


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation is for."""

    what: What
    stage: int
    microbatch: int | None = None
    """By the schedule's table; None if it has none."""
    words: str
    """``due from there: gradient of the output of stage 1, the 3rd of step 0, microbatch 2 by the schedule``."""


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The ranks of this rank's stages and their neighbours, and what crosses the boundaries."""

    rank: int
    """This rank, in the world."""
    owners: Sequence[frozenset[int]]
    """Per stage, ranks of the world."""
    dtype: str
    """The dtype of each boundary's only tensor; empty if there are several, or some that bypass stages."""
    trains: Callable[[int], bool]
    """Whether a step of the program has backwards."""
    order: Callable[[int, int, bool], Sequence[int]]
    """By step, stage of this rank, and whether backwards: the stage's microbatches in the schedule's order of
    their forwards or backwards; empty if unknown."""


def due(
    neighbours: Neighbours, operation: Operation, before: Sequence[Operation], cargo: Mapping[int, Cargo]
) -> Due | None:
    """What `operation` is for; `before` are the rank's earlier ones, and `cargo` what was recognised of any."""
    known = cargo.get(operation.number)
    if known is not None:
        what, stage, begin = known.what, known.stage, ""
        alike = [one for one in before if one.step == operation.step and _same(cargo.get(one.number), known)]
    else:
        candidates = list(_candidates(neighbours, operation))
        if len(candidates) != 1:
            return None
        ((what, stage),) = candidates
        begin = f"due {'from' if operation.kind == 'receive' else 'to'} there: "
        alike = [one for one in before if _alike(one, operation)]
    order, nth = neighbours.order(operation.step, stage, "gradient" in what), len(alike) + 1
    microbatch = order[nth - 1] if nth <= len(order) else None
    words = f"{begin}{_named(what)} of stage {stage}, the {_ordinal(nth)} of step {operation.step}"
    by_table = "" if microbatch is None else f", microbatch {microbatch} by the schedule"
    return Due(what=what, stage=stage, microbatch=microbatch, words=words + by_table)


def _same(one: Cargo | None, other: Cargo) -> bool:
    return one is not None and (one.what, one.stage) == (other.what, other.stage)


def _candidates(neighbours: Neighbours, operation: Operation) -> Iterator[tuple[What, int]]:
    tensors, step = operation.tensors, operation.step
    if operation.kind == "collective" or step < 0 or operation.process in (-1, neighbours.rank):
        return
    if len(tensors) != 1 or tensors[0].dtype != neighbours.dtype:
        return
    owners, here, there = neighbours.owners, neighbours.rank, operation.process
    receives, trains = operation.kind == "receive", neighbours.trains(step)
    for s in range(len(owners)):
        if here not in owners[s]:
            continue
        if s > 0 and there in owners[s - 1]:
            if receives:
                yield "input", s
            elif trains:
                yield "input gradient", s
        if s + 1 < len(owners) and there in owners[s + 1]:
            if not receives:
                yield "output", s
            elif trains:
                yield "output gradient", s


def _alike(one: Operation, other: Operation) -> bool:
    """Whether both are for the same boundary, if there is only one."""
    if (one.kind, one.process, one.step, len(one.tensors)) != (other.kind, other.process, other.step, 1):
        return False
    mine, its = one.tensors[0], other.tensors[0]
    return (mine.dtype, len(mine.shape)) == (its.dtype, len(its.shape))


def _named(what: What) -> str:
    return f"gradient of the {what.split()[0]}" if "gradient" in what else what


def _ordinal(number: int) -> str:
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
