"""Training steps in which the user calls the stages' operations, possibly at the wrong moment."""

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
"""Backward before forward; forward or backward twice; forward, backward or receive for a microbatch that the step does
not have; forward before its input has arrived, backward before the output's gradient has arrived, send before forward,
and the end of the step before backward."""

UNTIMELY: tuple[Untimely, ...] = get_args(Untimely)
_BEFORE = ("forward_early", "receive_unknown")
_AFTER = ("backward_early", "send_early")
_REMOTE = ("receive_unknown", "send_early")


class ByHand(Strict, frozen=True, kw_only=True):
    """A training step in which the user calls the stages' operations instead of running the schedule.

    All forwards run first, stage by stage; then all backwards, split into input and weight parts. With `mixed`, every
    second microbatch's backward runs as a whole; with `whole`, all of them do. With `late`, weight parts wait for all
    input parts of a rank. A `mistake` is made once, at `stage` and `microbatch`: the weight part runs before the input
    part, runs twice, or is for a microbatch that does not exist; or, with `whole`, one of `Untimely`.
    """

    mixed: bool = False
    late: bool = False
    whole: bool = False
    mistake: Literal["", "weight_first", "weight_twice", "weight_unknown"] | Untimely = ""
    stage: int = 0
    microbatch: int = 0


def has_neighbour(mistake: str, *, stage: int, placed: Sequence[int]) -> bool:
    """Whether a stage has the neighbour that a mistaken call needs; `placed` holds the rank of every stage.

    Stages send to and receive from other ranks only.
    """
    other = stage - 1 if mistake in _BEFORE else stage + 1
    if mistake not in _BEFORE + _AFTER:
        return True
    if not 0 <= other < len(placed):
        return False
    return mistake not in _REMOTE or placed[other] != placed[stage]


def impossible_by_hand(hand: ByHand, *, name: str, num_stages: int, num_microbatches: int) -> Iterator[str]:
    """Yield the reasons why such a step is impossible."""
    if hand.stage >= num_stages or hand.microbatch >= num_microbatches:
        yield f"{name} makes a mistake at a stage or microbatch that does not exist"
    if hand.mistake and hand.mixed:
        yield f"{name} cannot both be mixed and make a mistake: there may be no weight part"
    if hand.mistake.startswith("weight") and hand.whole:
        yield f"{name} has whole backwards: there is no weight part to make a mistake with"
    # the schedule's claim, which is not known here, decides the ranks of the stages
    if not has_neighbour(hand.mistake, stage=hand.stage, placed=range(num_stages)):
        yield f"{name}.mistake {hand.mistake!r} needs a neighbour of that stage"
