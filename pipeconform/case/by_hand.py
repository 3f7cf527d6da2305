"""Training steps in which the user calls the stages' own operations, and calls that are made at the wrong moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from pipeconform.case.strict import Strict

__all__ = ["UNTIMELY", "ByHand", "Untimely", "has_neighbour", "impossible_by_hand"]

Untimely = Literal[
    "backward_first",
    "forward_twice",
    "backward_twice",
    "forward_unknown",
    "backward_unknown",
    "receive_unknown",
    "forward_early",
    "backward_early",
    "send_early",
    "finish_early",
]
"""The backward before the forward; forward or backward a second time; forward, backward or the receiving of the input
of a microbatch that the step does not have; the forward before its input has come, the backward before the gradient of
the output has, the sending of the output before the forward, and the end of the step before the backward."""

UNTIMELY: tuple[Untimely, ...] = get_args(Untimely)
_BEFORE = ("forward_early", "receive_unknown")
_AFTER = ("backward_early", "send_early")
_REMOTE = ("receive_unknown", "send_early")


class ByHand(Strict, frozen=True, kw_only=True):
    """A training step that is driven by the stages' own operations instead of the schedule.

    All forwards run first, stage by stage; then all backwards, in input and weight parts. With `mixed`, every
    second microbatch's backward runs as a whole, with `whole` all of them; with `late`, weight parts wait for all of
    a rank's input parts. A `mistake` is made once, at a stage and microbatch: its weight part before its input part,
    once more after itself, or of a microbatch that does not exist; or, in a step of whole backwards, one of
    `Untimely`.
    """

    mixed: bool = False
    late: bool = False
    whole: bool = False
    mistake: Literal["", "weight_first", "weight_twice", "weight_unknown"] | Untimely = ""
    stage: int = 0
    microbatch: int = 0


def has_neighbour(mistake: str, *, stage: int, placed: Sequence[int]) -> bool:
    """Whether a stage has the neighbour that a call is about; `placed` holds the rank of every stage.

    A stage receives from, and sends to, other ranks only.
    """
    other = stage - 1 if mistake in _BEFORE else stage + 1
    if mistake not in _BEFORE + _AFTER:
        return True
    if not 0 <= other < len(placed):
        return False
    return mistake not in _REMOTE or placed[other] != placed[stage]


def impossible_by_hand(hand: ByHand, *, name: str, num_stages: int, num_microbatches: int) -> Iterator[str]:
    """Yield why a step cannot be driven like this, in words."""
    if hand.stage >= num_stages or hand.microbatch >= num_microbatches:
        yield f"{name} makes a mistake at a stage or microbatch that there is not"
    if hand.mistake and hand.mixed:
        yield f"{name} cannot be mixed and make a mistake: there may be no weight part"
    if hand.mistake.startswith("weight") and hand.whole:
        yield f"{name} has whole backwards: there is no weight part to be mistaken about"
    # where the schedule lays the stages out is the claim's business
    if not has_neighbour(hand.mistake, stage=hand.stage, placed=range(num_stages)):
        yield f"{name}.mistake {hand.mistake!r} needs a neighbour of that stage"
