"""Operations of a stage that its user calls when they are not due, in a step of whole backwards.

(What can be done wrong with the weight part is a matter of schedules that split the backward, and of chapter SPL.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

__all__ = ["DISORDERS", "Disorder", "has_subject"]

Disorder = Literal[
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

DISORDERS: tuple[Disorder, ...] = get_args(Disorder)
_BEFORE = ("forward_early", "receive_unknown")
_AFTER = ("backward_early", "send_early")
_REMOTE = ("receive_unknown", "send_early")


def has_subject(mistake: str, *, stage: int, placed: Sequence[int]) -> bool:
    """Whether there is the neighbour that a call is about; `placed` says the rank of every stage.

    A stage receives from, and sends to, other ranks only.
    """
    other = stage - 1 if mistake in _BEFORE else stage + 1
    if mistake not in _BEFORE + _AFTER:
        return True
    if not 0 <= other < len(placed):
        return False
    return mistake not in _REMOTE or placed[other] != placed[stage]
