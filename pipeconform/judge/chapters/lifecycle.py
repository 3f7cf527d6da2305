"""The judgements of chapter LIF."""

from __future__ import annotations

from pipeconform.adapter import Feature
from pipeconform.case.focus import Focus
from pipeconform.judge import lifecycle, residue
from pipeconform.judge.judgement import TIMELINE, Judgement, about
from pipeconform.observe.observation import Watched

__all__ = ["LIFECYCLE"]


_ROUNDS: frozenset[Watched] = frozenset({"memory", "rounds", "timeline"})

LIFECYCLE: dict[str, Judgement] = {
    "LIF-1": about(
        Focus.EVAL, Focus.VARYING, judge=lifecycle.any_order_is_right, among=frozenset({Focus.DROPOUT})
    ),
    "LIF-2": about(Focus.GUARDED, judge=lifecycle.evaluation_differentiates_nothing),
    "LIF-3": about(Focus.PLAIN, judge=residue.nothing_stays_behind, observe=_ROUNDS, any_schedule=True),
    "LIF-4": about(
        Focus.LOAD,
        judge=lifecycle.state_is_the_whole_models,
        needs=frozenset({Feature.STATE}),
        any_schedule=True,
    ),
    "LIF-5": about(Focus.PLAIN, Focus.DROPOUT, judge=lifecycle.nothing_by_itself, repeats=True),
    "LIF-6": about(
        Focus.PLAIN, Focus.BUFFERS, Focus.DROPOUT, Focus.FROZEN, judge=lifecycle.building_changes_nothing
    ),
    "LIF-7": about(
        Focus.PLAIN,
        judge=residue.activations_are_bounded,
        trains=True,
        observe=TIMELINE | {"memory"},
        named=True,
    ),
    "LIF-8": about(Focus.PLAIN, judge=residue.closing_is_clean, observe=_ROUNDS, any_schedule=True),
}
