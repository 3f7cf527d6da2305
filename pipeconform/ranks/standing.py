"""What a rank is doing while it does not answer, and whether all of them together prove a deadlock.

A *standing* is a rank's answer to that question (`pipeconform.ranks.examiner`). Two of them per
rank, one after the other, can **prove** a deadlock, long before idleness makes one likely:

1. Every unanswered rank is blocked in one wait, the same in both standings. So there was a moment, between
   the two rounds of questions, at which all of them were blocked at once. On a device a rank is blocked where it waits
   for a stream that waits for the operation.
2. Each waits for a receive whose message has not been sent (fewer sends have been issued on the other side
   than receives here, per group, pair and tag), for a send whose receive has not been posted (gloo hands
   nothing over before), or for a collective that some member has not come to; and the rank that would have to
   send, to receive or to come is itself one of the blocked ones.

At that moment only blocked ranks could have done the next step, and no message that could wake one of them was
on its way: every operation issued had been counted, delivered or not. So no rank ever goes on. Whatever does not
fit (a wait with a time limit, other Python threads, receives from any source, sends by another transport,
ranks that poll, ranks that already answered) proves nothing, and the evidence of idleness decides.

A rank that waits **in the harness** until the others come there is blocked as long as one of them is. But what an
error left behind may still wake that other one: an operation ends when the connection under it closes, and that
takes a moment on a busy machine. So where ranks wait in the harness, the two rounds must lie apart (`SETTLED`), with
no progress in between.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pipeconform.ranks.flight import Flight

__all__ = ["SETTLED", "Standing", "Wait", "deadlocked"]

SETTLED = 0.3
"""Seconds without progress between two rounds of standings, if ranks wait in the harness."""

_NEED_ALL = frozenset({"allreduce_", "allreduce_coalesced_", "barrier", "allgather_", "_allgather_base_"})
"""Collectives in which no member finishes before every member has come."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """The operation that a rank is blocked in."""

    words: str
    """``receive of float64[2, 3] from rank 1``."""
    peers: tuple[int, ...]
    """The ranks of the world that it waits for; several in a collective."""
    number: int = -1
    """Its place among the rank's operations; −1 if operations are not recorded."""
    name: str = ""
    group: str = ""
    tag: int = 0
    nth: int = 0
    """n, if this is the n-th send or receive of its group, peer and tag, or the n-th collective of its group, from
    1."""
    nth_of_peer: int = 0
    """The same over all tags, which most backends of devices ignore; 0 if this one does not."""
    rendezvous: bool = False
    """Whether a send ends only when its receive has been posted."""
    timed: bool = False
    """Whether it times out by itself."""
    stage: int | None = None
    """The stage of this rank that it is for, if known."""
    microbatch: int | None = None
    """The microbatch that is due by the schedule, if known."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's answer at one moment."""

    began: float = 0.0
    """When the examination began and ended, in ``time.monotonic()``, which all processes share."""
    ended: float = 0.0
    doing: str = ""
    """The action under way, or the last one: ``step 2, after the forward of stage 1, microbatch 3``."""
    wait: Wait | None = None
    since: float = 0.0
    """When the wait began, on the same clock; 0 if unknown."""
    recorded: bool = False
    """Whether its operations are recorded, so that the counts below are valid."""
    alone: bool = False
    """Whether no other Python thread than the task's could communicate."""
    in_harness: bool = False
    """Whether it waits in the harness's own code until the other ranks come there."""
    transfers: tuple[tuple[str, str, int, int, int], ...] = ()
    """Sends and receives issued, as (``send`` or ``recv_``, group, peer in the world, tag, number)."""
    collectives: tuple[tuple[str, int], ...] = ()
    """Collectives issued, as (group, number)."""
    flights: tuple[Flight, ...] = ()
    """The operations that its backend has not ended, if torch's flight recorder runs."""
    any_source: bool = False
    """Whether it ever received from any source: arrivals then do not say which sends were received."""

    def shifted(self, seconds: float) -> Standing:
        """The same on a clock that shows `seconds` more; an unknown start of a wait stays unknown."""
        return msgspec.structs.replace(
            self,
            began=self.began + seconds,
            ended=self.ended + seconds,
            since=self.since + seconds if self.since else 0.0,
        )


def deadlocked(first: Mapping[int, Standing], second: Mapping[int, Standing]) -> bool:
    """Whether two rounds of standings of all unanswered ranks prove that none of them ever goes on."""
    if not first or first.keys() != second.keys():
        return False
    if max(one.ended for one in first.values()) > min(one.began for one in second.values()):
        return False  # a late answer: the rounds overlap
    inside = {rank for rank in first if first[rank].in_harness and second[rank].in_harness}
    others = first.keys() - inside
    return bool(others) and all(_lost(rank, first, second) for rank in others)


def _lost(rank: int, first: Mapping[int, Standing], second: Mapping[int, Standing]) -> bool:
    before, now = first[rank], second[rank]
    wait = now.wait
    if wait is None or before.wait is None or wait.timed or wait.number < 0:
        return False
    if (before.wait.number, before.since) != (wait.number, now.since):
        return False
    if not (now.recorded and now.alone) or now.any_source:
        return False
    blocked = [peer for peer in wait.peers if peer in first and first[peer].recorded]
    if wait.name == "recv_" or (wait.name == "send" and wait.rendezvous):
        other = "send" if wait.name == "recv_" else "recv_"
        if not blocked or _issued(second[blocked[0]], other, wait, peer=rank) >= wait.nth:
            return False
        of_peer = _issued_with_any_tag(second[blocked[0]], other, wait, peer=rank)
        return not wait.nth_of_peer or of_peer < wait.nth_of_peer
    if wait.name in _NEED_ALL:
        return any(dict(second[peer].collectives).get(wait.group, 0) < wait.nth for peer in blocked)
    return False


def _issued_with_any_tag(standing: Standing, name: str, wait: Wait, *, peer: int) -> int:
    key = (name, wait.group, peer)
    return sum(
        count for kind, group, process, _, count in standing.transfers if (kind, group, process) == key
    )


def _issued(standing: Standing, name: str, wait: Wait, *, peer: int) -> int:
    """How many sends or receives a rank has issued that could end `wait`, or one before it."""
    key = (name, wait.group, peer, wait.tag)
    return sum(count for *found, count in standing.transfers if tuple(found) == key)
