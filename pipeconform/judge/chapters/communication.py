"""The judgements of chapter COM."""

from __future__ import annotations

from pipeconform.case.focus import Focus
from pipeconform.judge import communication, crossing
from pipeconform.judge.conditions import BYSTANDER, DELAY, SEVERAL_RANKS, Condition
from pipeconform.judge.evidence import Judge
from pipeconform.judge.judgement import Judgement, about

__all__ = ["COMMUNICATION"]


def _recorded(judge: Judge, *, condition: Condition = SEVERAL_RANKS) -> Judgement:
    """About what is sent and received; all of them draw the same cases, which thus run once."""
    return about(
        Focus.PLAIN,
        judge=judge,
        draws=frozenset({Focus.TRAFFIC}),
        observe=frozenset({"traffic"}),
        costly=True,
        by_schedule=True,
        condition=condition,
        nothing="the ranks were not seen to send or receive anything",
    )


COMMUNICATION: dict[str, Judgement] = {
    "COM-1": _recorded(communication.matched),
    "COM-2": _recorded(communication.only_the_given_group, condition=BYSTANDER),
    "COM-3": _recorded(communication.gets_through),
    "COM-4": _recorded(communication.memory_in_flight_is_left_alone),
    "COM-5": _recorded(communication.no_more_than_needed),
    "COM-6": about(
        Focus.DELAYED,
        judge=communication.timing_changes_nothing,
        costly=True,
        by_schedule=True,
        condition=DELAY,
    ),
    "COM-7": _recorded(crossing.everything_crosses),
}
