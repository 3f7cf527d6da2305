"""Which rank waits for which, and why none of them goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

__all__ = ["Blocked", "Place", "circle_of", "explain_waiting", "waiting_of"]


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where one rank was when the ranks of a hang were given up; stored in result files."""

    rank: int
    verdict: Literal["returned", "raised", "died", "stuck"]
    waits: str = ""
    """The operation that it was blocked in: ``receive of float64[2, 3] from rank 1``."""
    waits_for: tuple[int, ...] = ()
    """The ranks of the world that would have to act for that to end."""
    waited: float | None = None
    """For how many seconds; None if unknown."""
    doing: str = ""
    """The last thing it computed."""
    stage: int | None = None
    """The stage of this rank that the operation is for; None if unknown."""
    microbatch: int | None = None
    """The microbatch that is due in it by the schedule; None if unknown."""
    flights: tuple[str, ...] = ()
    """The operations that its backend had not ended, from torch's flight recorder, in words, oldest first."""
    ended: str = ""
    """How a rank ended that is not stuck: ``died (SIGKILL)``."""
    stack: str = ""
    """Its Python stack."""


class Blocked(Protocol):
    """A rank that is blocked in an operation."""

    @property
    def doing(self) -> str:
        """The action under way, or the last one."""

    @property
    def waits(self) -> str:
        """The operation."""

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The ranks that would have to act."""

    @property
    def waited(self) -> float | None:
        """For how many seconds; None if unknown."""

    @property
    def flights(self) -> tuple[str, ...]:
        """The operations that its backend had not ended, in words."""


def circle_of(blocked: Mapping[int, Blocked]) -> tuple[int, ...]:
    """The shortest circle of ranks that wait for one another, from its lowest rank; empty if there is none."""
    found = (_way_back(start, blocked) for start in sorted(blocked))
    return min((way for way in found if way), key=len, default=())


def _way_back(start: int, blocked: Mapping[int, Blocked]) -> tuple[int, ...]:
    """The shortest way from `start` to itself, over ranks above it."""
    ways: list[tuple[int, ...]] = [(start,)]
    seen = {start}
    for way in ways:
        for peer in blocked[way[-1]].waits_for:
            if peer == start:
                return way
            if peer > start and peer in blocked and peer not in seen:
                seen.add(peer)
                ways.append((*way, peer))
    return ()


def explain_waiting(blocked: Mapping[int, Blocked], ended: Mapping[int, str]) -> str:
    """One line per blocked rank, and one that says why what it waits for never comes.

    `ended` says how the other ranks ended: ``has returned``, ``died (SIGKILL)``. Empty if no rank is
    known to wait for another.
    """
    lines = [f"rank {rank} {_waits(one)}" for rank, one in blocked.items() if one.waits]
    lines += [
        f"rank {rank}, flight recorder: {'; '.join(one.flights)}"
        for rank, one in blocked.items()
        if one.flights
    ]
    circle = circle_of(blocked)
    if circle:
        lines.append("a circle: " + " waits for ".join(f"rank {rank}" for rank in (*circle, circle[0])))
    elif gone := next(((r, p) for r, one in blocked.items() for p in one.waits_for if p in ended), None):
        lines.append(f"rank {gone[0]} waits for rank {gone[1]}, which {ended[gone[1]]}")
    return "\n".join(lines)


def waiting_of(places: Sequence[Place]) -> str:
    """The same explanation from the places of all ranks."""
    stuck = {place.rank: place for place in places if place.verdict == "stuck"}
    return explain_waiting(stuck, {place.rank: place.ended for place in places if place.rank not in stuck})


def _waits(one: Blocked) -> str:
    since = "" if one.waited is None else f", for {one.waited:.1f} s"
    return f"waits for {one.waits}{since}" + (f"; {one.doing}" if one.doing else "")
