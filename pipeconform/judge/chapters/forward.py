"""The judgements of chapter FWD."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import Feature
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus
from pipeconform.judge import forward, tensor_parallel, training
from pipeconform.judge.conditions import SEVERAL_STAGES, SOMEBODY_ELSE, UNEVEN_BATCH
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.judgement import Judgement, about, with_gradients

__all__ = ["FORWARD"]


def _whole_batch(evidence: Evidence) -> Iterator[Finding]:
    """Order and length; every value too, where uneven batches are claimed and so the way they are split."""
    yield from forward.batch_order_is_kept(evidence)
    if Focus.UNEVEN in traits(evidence.case) and Feature.UNEVEN_BATCHES in evidence.capabilities.features:
        yield from forward.outputs_are_right(evidence)
        yield from training.losses_and_gradients_are_right(evidence)


def _results(evidence: Evidence) -> Iterator[Finding]:
    """Outputs, claimed or not; of an engine that returns none, the losses: all that its caller has of them.

    What the last stage of such an engine computed is looked at, too, but is no proof of what it does with that.
    """
    if forward.outputs_are_due(evidence):
        yield from forward.outputs_are_right(evidence)
        return
    found = list(forward.outputs_are_right(evidence.uncounted))
    yield from found or training.losses_are_right(evidence)


_CROSSING = frozenset({Focus.BOUNDARY, Focus.NO_GRAD, Focus.DTYPE})

FORWARD: dict[str, Judgement] = {
    "FWD-1": about(
        Focus.PLAIN,
        judge=_results,
        nothing="neither an output nor a loss is returned, which are all that a caller has of the outputs",
    ),
    "FWD-2": about(
        Focus.PLAIN,
        Focus.UNEVEN,
        judge=_whole_batch,
        needs=frozenset({Feature.OUTPUTS}),
        tolerates=frozenset({Focus.UNEVEN}),
        condition=UNEVEN_BATCH,
    ),
    "FWD-3": about(
        Focus.PLAIN,
        judge=forward.outputs_only_where_declared,
        needs=frozenset({Feature.OUTPUTS}),
        condition=SOMEBODY_ELSE,
    ),
    "FWD-4": about(
        Focus.BOUNDARY, judge=with_gradients(forward.containers_are_kept), condition=SEVERAL_STAGES
    ),
    "FWD-5": about(
        Focus.NO_GRAD, judge=with_gradients(forward.tensors_without_gradient_arrive), condition=SEVERAL_STAGES
    ),
    "FWD-6": about(
        Focus.DTYPE,
        judge=with_gradients(forward.boundaries_arrive),
        among=_CROSSING,
        condition=SEVERAL_STAGES,
    ),
    "FWD-7": about(
        Focus.VIEWS,
        Focus.LAYOUT,
        judge=with_gradients(forward.boundaries_arrive),
        tolerates=frozenset({Focus.VIEWS, Focus.LAYOUT}),
        echoes=True,
        condition=SEVERAL_STAGES,
    ),
    "FWD-8": about(Focus.SHAPES, judge=with_gradients(forward.boundaries_arrive), condition=SEVERAL_STAGES),
    "FWD-9": about(Focus.KWARGS, judge=with_gradients(forward.outputs_are_right)),
    "FWD-10": about(Focus.SKIP, judge=with_gradients(forward.boundaries_arrive), condition=SEVERAL_STAGES),
    "FWD-11": about(
        Focus.STRUCTURED,
        judge=with_gradients(forward.containers_are_kept),
        needs=frozenset({Feature.OUTPUTS}),
    ),
    "FWD-12": about(Focus.IGNORED, judge=with_gradients(forward.boundaries_arrive), condition=SEVERAL_STAGES),
    "FWD-13": about(Focus.SHARED, judge=training.values_and_gradients_are_right),
    "FWD-14": about(Focus.INPLACE, judge=training.values_and_gradients_are_right),
    "FWD-15": about(Focus.OBJECTS, judge=with_gradients(forward.outputs_are_right), any_schedule=True),
    "FWD-16": about(Focus.BATCH_DIM, judge=with_gradients(forward.outputs_are_right)),
    "FWD-22": about(Focus.RULES, judge=with_gradients(forward.outputs_are_right), any_schedule=True),
    "FWD-23": about(Focus.MERGES, judge=with_gradients(forward.merges_are_right)),
    "FWD-17": about(Focus.HOOKS, judge=forward.hooks_run_once),
    "FWD-18": about(Focus.AUTOCAST, judge=with_gradients(forward.containers_are_kept), any_schedule=True),
    "FWD-19": about(
        Focus.PLACED,
        judge=tensor_parallel.boundaries_keep_their_placement,
        trains=True,
        costly=True,
        condition=SEVERAL_STAGES,
    ),
    "FWD-20": about(
        Focus.COMPILED,
        judge=training.losses_and_gradients_are_right,
        tolerates=frozenset({Focus.COMPILED}),
        echoes=True,  # a schedule looks at the stages of its own rank
        refusal=forward.compilation_is_named,
        costly=True,
    ),
    "FWD-21": about(
        Focus.FLOAT8,
        judge=with_gradients(forward.boundaries_arrive),
        tolerates=frozenset({Focus.FLOAT8}),
        echoes=True,
        any_schedule=True,
        condition=SEVERAL_STAGES,
    ),
}
