"""The judgements of chapter TRN."""

from __future__ import annotations

from pipeconform.adapter import Feature
from pipeconform.case.focus import Focus
from pipeconform.judge import norms, training
from pipeconform.judge.conditions import SEVERAL_STAGES
from pipeconform.judge.judgement import Judgement, about

__all__ = ["TRAINING"]


_CROSSING = frozenset({Focus.BOUNDARY, Focus.NO_GRAD, Focus.DTYPE})

TRAINING: dict[str, Judgement] = {
    "TRN-1": about(Focus.PLAIN, judge=training.gradients_are_right, trains=True),
    "TRN-2": about(Focus.PLAIN, Focus.SUM, judge=training.losses_are_right, trains=True),
    "TRN-3": about(Focus.PLAIN, Focus.SUM, judge=training.scale_is_right, trains=True),
    "TRN-4": about(Focus.ACCUMULATE, judge=training.gradients_are_right, trains=True),
    "TRN-5": about(Focus.FROZEN, judge=training.gradients_are_right, trains=True),
    "TRN-6": about(Focus.UNUSED, judge=training.gradients_are_right, trains=True),
    "TRN-7": about(
        Focus.INPUTS,
        judge=training.input_gradients_are_right,
        trains=True,
        among=frozenset({Focus.KWARGS}),
    ),
    "TRN-8": about(Focus.TIED, Focus.TIED_STAGES, judge=training.values_and_gradients_are_right),
    "TRN-9": about(Focus.BUFFERS, judge=training.buffers_are_right, needs=frozenset({Feature.STATE})),
    "TRN-10": about(Focus.DROPOUT, judge=training.dropout_is_replayed, trains=True),
    "TRN-11": about(
        Focus.CHECKPOINT,
        Focus.REENTRANT,
        judge=training.losses_and_gradients_are_right,
        trains=True,
        tolerates=frozenset({Focus.REENTRANT}),
        echoes=True,
    ),
    "TRN-12": about(Focus.TARGETS, judge=training.losses_and_gradients_are_right, trains=True),
    "TRN-13": about(Focus.AUXILIARY, judge=training.losses_and_gradients_are_right, trains=True),
    "TRN-14": about(
        Focus.OPTIMIZER, judge=training.updates_are_right, trains=True, needs=frozenset({Feature.STATE})
    ),
    "TRN-15": about(
        Focus.GRADIENT_LAYOUT,
        Focus.IGNORED,
        judge=training.gradients_are_right,
        trains=True,
        condition=SEVERAL_STAGES,
    ),
    "TRN-16": about(
        Focus.DTYPE,
        judge=training.losses_and_gradients_are_right,
        trains=True,
        among=_CROSSING,
        condition=SEVERAL_STAGES,
    ),
    "TRN-17": about(
        Focus.PLAIN,
        Focus.FROZEN,
        Focus.TIED,
        Focus.UNUSED,
        judge=norms.gradient_norm_is_right,
        trains=True,
        needs=frozenset({Feature.GRADIENT_NORM}),
    ),
    "TRN-18": about(Focus.STATEFUL, judge=training.values_and_gradients_are_right, trains=True),
}
