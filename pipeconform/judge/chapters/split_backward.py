"""The judgements of chapter SPL."""

from __future__ import annotations

from pipeconform.case.focus import Focus
from pipeconform.judge import split_backward, training
from pipeconform.judge.judgement import TIMELINE, Judgement, about

__all__ = ["SPLIT_BACKWARD"]


SPLIT_BACKWARD: dict[str, Judgement] = {
    "SPL-1": about(
        Focus.PLAIN,
        Focus.VIEWS,
        Focus.SHARED,
        Focus.TIED,
        Focus.GRAPHS,
        Focus.FROZEN,
        Focus.NO_GRAD,
        judge=training.gradients_are_right,
        trains=True,
        splits=True,
    ),
    "SPL-2": about(
        Focus.PLAIN,
        Focus.BY_HAND,
        judge=split_backward.weights_run_once,
        trains=True,
        splits=True,
        observe=TIMELINE | {"memory"},
    ),
    "SPL-3": about(Focus.DEFERRED, judge=split_backward.deferred_functions_run_once, trains=True),
    "SPL-4": about(Focus.DISORDER, judge=split_backward.mistakes_are_refused, trains=True, splits=True),
    "SPL-5": about(
        Focus.PLAIN,
        Focus.BY_HAND,
        judge=split_backward.nothing_kept_after_weights,
        trains=True,
        splits=True,
        observe=TIMELINE | {"memory"},
    ),
}
