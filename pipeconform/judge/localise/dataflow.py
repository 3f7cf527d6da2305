"""Comparisons in the order in which values depend on each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pipeconform.bounds.numerics import Mismatch
from pipeconform.observe.localisation import Deviation, Direction, Lane

__all__ = ["Check", "Side", "deviation_of", "lanes_of", "order_of", "place_of"]

Side = Literal["input", "output", "result", ""]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One comparison, and its place in the data flow."""

    direction: Direction
    step: int
    stage: int
    microbatch: int | None
    side: Side = ""
    rank: int | None = None
    tensor: str = ""
    mismatch: Mismatch | None = None
    words: str = ""
    """How the value differs, where no `mismatch` says so."""
    likeness: str = ""
    bits_only: bool = False
    """Whether the value differs, but within its bound."""

    @property
    def is_wrong(self) -> bool:
        """Whether the value has left its class."""
        return bool(self.mismatch or self.words) and not self.bits_only

    @property
    def lane(self) -> tuple[Direction, int, Side]:
        """Its place, for all microbatches."""
        return self.direction, self.stage, self.side


def order_of(one: Check, num_stages: int) -> tuple[int, ...]:
    """The key that sorts comparisons in data-flow order; see `pipeconform.judge.localise.localisation`."""
    s, last = one.stage, num_stages
    place = {
        ("forward value", "input"): 2 * s,
        ("forward value", "output"): 2 * s + 1,
        ("forward value", "result"): 2 * last,
        ("loss", ""): 2 * last + 1,
        ("output gradient", ""): 4 * last - 2 * s,
        ("input gradient", ""): 4 * last - 2 * s + 1,
        ("buffer", ""): 5 * last,
        ("weight gradient", ""): 6 * last - s,
        ("input gradient", "result"): 7 * last,
        ("parameter", ""): 8 * last + s,
    }[one.direction, one.side]
    return one.step, one.microbatch is None, one.microbatch or 0, place


def deviation_of(one: Check) -> Deviation:
    """A wrong comparison as data."""
    return Deviation(
        direction=one.direction,
        step=one.step,
        stage=one.stage,
        microbatch=one.microbatch,
        rank=one.rank,
        tensor=one.tensor,
        text=one.words if one.mismatch is None else one.mismatch.describe(),
        likeness=one.likeness,
        side=one.side,
    )


def place_of(one: Deviation, num_stages: int) -> tuple[int, ...]:
    """Like `order_of`, for a comparison as data."""
    where = Check(
        direction=one.direction, step=one.step, stage=one.stage, microbatch=one.microbatch, side=one.side
    )
    return order_of(where, num_stages)


def lanes_of(
    checks: Sequence[Check], wrong: Sequence[Check], step: int, *, num_stages: int, num_microbatches: int
) -> Iterator[Lane]:
    """The places of one step in data-flow order; `wrong` are the checks to mark."""
    here = [one for one in checks if one.step == step]
    marked = {id(one) for one in wrong}
    flow = sorted({(order_of(one, num_stages)[3], one.lane, one.microbatch is None) for one in here})
    for _, lane, whole in flow:
        own = [one for one in here if one.lane == lane and (one.microbatch is None) is whole]
        slots: list[int | None] = [None] if whole else [*range(num_microbatches)]
        marks = ""
        for k in slots:
            found = [id(one) in marked for one in own if one.microbatch == k]
            marks += "x" if any(found) else "=" if found else "."
        direction, stage, side = lane
        yield Lane(direction=direction, stage=stage, side=side, marks=marks)
