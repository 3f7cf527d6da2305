"""Stages driven by hand, and functions that a user defers."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.focus import Focus
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.judgement import requirement
from pipeconform.judge.split_backward import (
    mistakes_are_refused,
    refusals_name_the_microbatch,
    wrongly_counted,
)
from pipeconform.judge.training import gradients_are_right
from pipeconform.spec.catalogue import MUST, SHOULD

from ..promises import in_source


@requirement(
    "SPL-3",
    title="Deferred-weight functions",
    level=MUST,
    about=(Focus.DEFERRED,),
    trains=True,
    promise=in_source(
        "torch.distributed.pipelining, PipelineStage(dw_builder=…)", "distributed/pipelining/stage.py"
    ),
)
def deferred_weight_functions_run_once(evidence: Evidence) -> Iterator[Finding]:
    """Where weight gradients are left to functions of the user's, the function that builds them runs once per
    stage and microbatch, and so does each function that it returns: as the weight part, or at the end of the
    backward under schedules that only know whole backwards.

    Fused kernels compute weight gradients themselves, later; a function that is forgotten, or called twice,
    makes a gradient silently wrong.
    """
    miscounted = list(wrongly_counted(evidence))
    yield from miscounted or gradients_are_right(evidence.uncounted)


@requirement(
    "SPL-4",
    title="Weight parts that are not due",
    level=MUST,
    about=(Focus.DISORDER,),
    trains=True,
    splits=True,
    promise=in_source(
        "torch.distributed.pipelining, backward_weight_one_chunk: a chunk without a stored input part is refused",
        "distributed/pipelining/stage.py",
    ),
)
def weight_parts_that_are_not_due_are_refused(evidence: Evidence) -> Iterator[Finding]:
    """A stage that is asked for the weight part of a microbatch before its input part, a second time, or for
    a microbatch that the step does not have, raises an error; nothing changes, and the step can go on.

    People who write a schedule by hand make these mistakes; a gradient that is quietly added twice costs a
    day.
    """
    yield from mistakes_are_refused(evidence)


@requirement(
    "SPL-6",
    title="Words about weight parts that are not due",
    level=SHOULD,
    about=(Focus.DISORDER,),
    trains=True,
    splits=True,
    nothing="no weight part that is not due was refused",
    promise=in_source(
        "torch.distributed.pipelining, backward_weight_one_chunk: the error names the chunk in words",
        "distributed/pipelining/stage.py",
    ),
)
def weight_parts_that_are_not_due_are_refused_in_words(evidence: Evidence) -> Iterator[Finding]:
    """The error about a weight part that is not due (SPL-4) names the microbatch in words.

    A bare KeyError says nothing about the schedule.
    """
    yield from refusals_name_the_microbatch(evidence)
