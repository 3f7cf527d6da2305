"""Sizes at which schedules go wrong."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.forward import outputs_are_right
from pipeconform.judge.judgement import TIMELINE, requirement
from pipeconform.judge.schedules import counted_once
from pipeconform.judge.timeline import executed
from pipeconform.judge.training import gradients_are_right
from pipeconform.spec.catalogue import MUST

from ..promises import FULL_MODEL, in_source


@requirement(
    "SCH-6",
    title="Edge sizes",
    level=MUST,
    about=(Focus.PLAIN,),
    draws=(Focus.EDGE,),
    observe=TIMELINE | {"loneliness"},
    tolerates_errors=True,
    promise=(
        FULL_MODEL,
        in_source(
            "torch.distributed.pipelining schedules, ValueError: numbers of microbatches that a schedule refuses",
            "distributed/pipelining/schedules.py",
        ),
    ),
)
def edge_sizes_are_right_or_refused(evidence: Evidence) -> Iterator[Finding]:
    """With fewer microbatches than ranks, one microbatch, one rank, more than three stages per rank, or a
    number of microbatches that the schedule does not claim, values are right or every rank raises an error;
    no rank hangs, and none is alone with its error.

    A rank that refuses alone leaves the others waiting; an edge size that is not refused is often wrong.
    """
    yield from outputs_are_right(evidence)
    yield from gradients_are_right(evidence)
    for expected in evidence.runs():
        yield from counted_once(evidence, expected.step, executed(evidence, expected.step))
