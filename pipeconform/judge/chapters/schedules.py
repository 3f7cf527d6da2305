"""The judgements of chapter SCH."""

from __future__ import annotations

from pipeconform.adapter import Feature
from pipeconform.case.focus import Focus
from pipeconform.judge import schedules, tables
from pipeconform.judge.conditions import EVALUATION, SEVERAL_RANKS
from pipeconform.judge.judgement import TIMELINE, Judgement, about

__all__ = ["SCHEDULES"]


SCHEDULES: dict[str, Judgement] = {
    "SCH-1": about(Focus.PLAIN, judge=schedules.everything_once, observe=TIMELINE),
    "SCH-2": about(Focus.PLAIN, judge=schedules.order_is_the_named_one, observe=TIMELINE, named=True),
    "SCH-3": about(
        Focus.PLAIN, judge=schedules.in_flight_is_bounded, trains=True, observe=TIMELINE, named=True
    ),
    "SCH-4": about(
        Focus.PLAIN,
        judge=tables.bubble_is_bounded,
        trains=True,
        observe=TIMELINE,
        named=True,
        needs=frozenset({Feature.DECLARED_TABLE}),
    ),
    "SCH-5": about(
        Focus.PLAIN,
        judge=tables.nothing_waits_in_a_circle,
        trains=True,
        observe=TIMELINE,
        needs=frozenset({Feature.DECLARED_TABLE}),
    ),
    "SCH-6": about(
        Focus.PLAIN,
        judge=schedules.edges_are_right,
        draws=frozenset({Focus.EDGE}),
        observe=TIMELINE | {"loneliness"},
    ),
    "SCH-7": about(
        Focus.PLAIN,
        Focus.MISPLACED,
        judge=schedules.placement_is_kept,
        observe=TIMELINE,
        refuses=frozenset({Focus.MISPLACED}),
        condition=SEVERAL_RANKS,
    ),
    "SCH-8": about(
        Focus.PLAIN,
        judge=schedules.declared_is_executed,
        trains=True,
        observe=TIMELINE,
        needs=frozenset({Feature.DECLARED_TABLE}),
    ),
    "SCH-9": about(
        Focus.PLAIN,
        Focus.EVAL,
        judge=schedules.evaluation_is_right,
        evaluates=True,
        observe=TIMELINE,
        needs=frozenset({Feature.EVAL}),
        condition=EVALUATION,
    ),
}
