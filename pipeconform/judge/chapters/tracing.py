"""The judgements of chapter TRC."""

from __future__ import annotations

from pipeconform.case.focus import Focus
from pipeconform.judge import tracing
from pipeconform.judge.judgement import Judgement, about

__all__ = ["TRACING"]


TRACING: dict[str, Judgement] = {
    "TRC-1": about(Focus.WHOLE, judge=tracing.stages_equal_the_model, any_schedule=True, costly=True),
    "TRC-2": about(
        Focus.WHOLE, Focus.WHOLE_CONTENTS, judge=tracing.keys_are_the_models, any_schedule=True, costly=True
    ),
    "TRC-3": about(
        Focus.WHOLE_CONTENTS, judge=tracing.stages_equal_the_model, any_schedule=True, costly=True
    ),
    "TRC-4": about(
        Focus.WHOLE_WRONG,
        judge=tracing.right_or_refused,
        tolerates=frozenset({Focus.WHOLE_WRONG}),
        refusal=tracing.refusal_is_clear,
        any_schedule=True,
        costly=True,
    ),
    "TRC-5": about(
        Focus.WHOLE_SHAPES,
        judge=tracing.shapes_are_known,
        tolerates=frozenset({Focus.WHOLE_SHAPES}),
        refusal=tracing.shapes_are_told_apart,
        any_schedule=True,
        costly=True,
    ),
}
