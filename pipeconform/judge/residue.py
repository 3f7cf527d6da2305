"""What ranks keep after a step, after more steps and pipelines, and after closing."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.errors import HarnessError
from pipeconform.judge.evidence import Finding, shown_step
from pipeconform.observe.observation import NUM_ROUNDS, WARM_UP, Census, Kept, LivedOn, Observation

__all__ = [
    "grown",
    "held_by",
    "kept_by",
    "lived_on_by",
]


def grown(found: tuple[Census, ...], what: str, rank: int) -> Iterator[Finding]:
    """Findings about what grew between warm-up and end by at least one for every round.

    Less growth is not a leak: threads that were asked to end take their time, and those of the transport release their
    last message a moment late.
    """
    if len(found) < 2:
        return
    before, after = found[0], found[-1]
    for name in ("tensors", "threads", "descriptors", "groups"):
        more = getattr(after, name) - getattr(before, name)
        if more >= NUM_ROUNDS - WARM_UP:
            text = (
                f"rank {rank} has {getattr(after, name)} {name} after {NUM_ROUNDS} more {what}s, and had "
                f"{getattr(before, name)} after {WARM_UP}: every {what} leaves some behind"
            )
            yield Finding(kind=f"{name} left by every {what}", message=text, rank=rank)


def held_by(holder: str) -> str:
    """A line of its own about what keeps the first tensor alive, if that was found.

    The first line of a message is the same whatever holds it: stored expectations compare that line.
    """
    return f"\nthe first is kept by {holder}" if holder else ""


def kept_by(one: Observation, step: int) -> Kept:
    """What a rank kept in a step."""
    found = shown_step(one, step).kept
    if found is None:
        raise HarnessError(f"rank {one.rank} was asked what it keeps and recorded nothing")
    return found


def lived_on_by(one: Observation) -> LivedOn:
    """What a rank had after more steps and more pipelines."""
    if one.lived_on is None:
        raise HarnessError(f"rank {one.rank} was asked to live on and recorded nothing")
    return one.lived_on
