"""Exceptions, and the state of ranks and pipelines after them."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.draw.registry import MISTAKEN
from pipeconform.case.focus import Focus
from pipeconform.judge.aftermath import (
    Aftermath,
    answers_are_right,
    deaths_and_hangs,
    done_wrong,
    is_due,
    outcome_of,
    worded,
)
from pipeconform.judge.conditions import SEVERAL_RANKS
from pipeconform.judge.evidence import Finding
from pipeconform.judge.forward import outputs_are_right
from pipeconform.judge.judgement import after_mistakes
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.judge.training import losses_and_gradients_are_right
from pipeconform.observe.observation import RESUMED
from pipeconform.ranks.verdict import Raised, Stuck
from pipeconform.spec.catalogue import MUST, SHOULD

from ..promises import DECLARED, HANDLED, MISMATCHES, RAISED, TIME_OUT


@after_mistakes(
    "ERR-10",
    title="Exceptions of the model",
    level=MUST,
    about=(Focus.RAISES, Focus.HOOK_RAISES),
    promise=(DECLARED, RAISED, TIME_OUT),
)
def exceptions_of_the_model(aftermath: Aftermath) -> Iterator[Outcome]:
    """An exception inside a stage, in the forward or the backward, in the loss function, for every microbatch
    or for one, or in a communication hook of replicated stages, surfaces as the declared error: it names
    rank, stage, microbatch and direction, has the original as its cause, and what other ranks raise names its
    stage. Declared or not, every other rank ends, and none dies.

    One stage of many that runs out of memory is the everyday case; 'connection closed by peer' on every other
    rank hides it.
    """
    yield from answers_are_right(aftermath)


@after_mistakes(
    "ERR-11",
    title="After an error",
    level=SHOULD,
    about=(Focus.RAISES, Focus.WRONG_SHAPE, Focus.MISPLANNED),
    observe=("recovery",),
    by_schedule=True,
    nothing="no rank raised an error after which it could recover",
    promise=HANDLED,
)
def after_an_error(aftermath: Aftermath) -> Iterator[Outcome]:
    """Once an error has ended a step, or the building of a pipeline, on all ranks, a new pipeline in the same
    processes, around the same stages, works: it is built, and its outputs, losses and gradients are right.

    A program that catches the error, to skip a batch or to try a smaller one, has no other processes, and no other
    model. What an engine keeps of the aborted step, such as its losses, adds gradients to the next one's.
    """
    ended = list(deaths_and_hangs(aftermath))
    if ended:
        yield from ended
        return
    assert aftermath.evidence is not None
    # where no rank failed there was no error to recover from
    evidence = aftermath.evidence if aftermath.failed else aftermath.evidence.uncounted
    found = [
        *outputs_are_right(evidence),
        *losses_and_gradients_are_right(evidence),
    ]
    for finding in found[:1]:
        text = f"after {done_wrong(aftermath)}, and an error, a new pipeline is wrong: {finding.message}"
        yield outcome_of(
            aftermath, Status.FAILED, worded(finding, kind=f"after an error: {finding.kind}", message=text)
        )


@after_mistakes(
    "ERR-14",
    title="No rank waits for one that failed",
    level=SHOULD,
    about=(Focus.RAISES,),
    observe=("loneliness",),
    condition=SEVERAL_RANKS,
    nothing="no rank raised an error for which another one could wait",
    promise=TIME_OUT,
)
def nobody_waits_for_who_failed(aftermath: Aftermath) -> Iterator[Outcome]:
    """When an exception ends a step on one rank, and its process lives on with its connections open, the step
    ends on every other rank, too.

    Where no socket closes (NCCL; a process that catches the error), nothing else wakes the other ranks before
    the process group's time-out, half an hour by default. ERR-10 allows a closing connection to wake them.
    """
    aftermath.gauge.count(len(aftermath.verdicts) if aftermath.failed else 0)
    yield from (one for one in deaths_and_hangs(aftermath) if one.status is not Status.CRASHED)


@after_mistakes(
    "ERR-13",
    title="No process dies",
    level=MUST,
    about=MISTAKEN,
    promise=(RAISED, *MISMATCHES),
)
def nobody_dies(aftermath: Aftermath) -> Iterator[Outcome]:
    """None of the mistakes in this chapter ends a process (by an abort, a segmentation fault, or an exit).

    A process that is gone cannot say what was wrong, and takes its checkpoint with it.
    """
    aftermath.gauge.count(len(aftermath.verdicts))
    yield from (one for one in deaths_and_hangs(aftermath) if one.status is not Status.HUNG)


@after_mistakes(
    "ERR-15",
    title="The same pipeline after an error",
    level=SHOULD,
    about=(Focus.WRONG_SHAPE, Focus.WRONG_DTYPE, Focus.WRONG_BATCH),
    observe=("resumption",),
    promised=True,
    nothing="no promised error about a batch was raised on all ranks",
    promise=(DECLARED, HANDLED),
)
def the_same_pipeline_after_an_error(aftermath: Aftermath) -> Iterator[Outcome]:
    """After a declared error has refused a batch on all ranks, the same pipeline works: once gradients are
    cleared, the next step ends on every rank, and its losses and gradients are right.

    A batch that is refused before anything was sent is no reason to build everything anew; what was
    remembered of it must not affect the next one.
    """
    step, mistake = aftermath.mistake()
    if not aftermath.errors.promised(mistake.kind) or not is_due(aftermath.case, step, mistake):
        return
    for rank, one in enumerate(aftermath.verdicts):
        if isinstance(one, Raised):  # what ended the mistaken step itself is among `failed`
            text = f"after {done_wrong(aftermath)}, and an error, the same pipeline fails: {one.type}: {one.message}"
            finding = Finding(kind=f"after an error: raised {one.type}", message=text, step=step, rank=rank)
            yield outcome_of(aftermath, Status.ERROR, finding)
            return
    for rank, one in enumerate(aftermath.verdicts):
        if isinstance(one, Stuck) and RESUMED in one.doing:
            told = f"after {done_wrong(aftermath)}, and an error, the same pipeline waits forever: {one.why}"
            text = f"{told}\n{aftermath.verdicts.describe()}\n{one.stack}".rstrip()
            finding = Finding(kind="after an error: hang", message=text, step=step, rank=rank)
            yield outcome_of(aftermath, Status.HUNG, finding)
            return
    refused = {rank for rank, one in aftermath.failed.items() if one.step == step}  # not while it was built
    if aftermath.evidence is None or not set(aftermath.case.world.pipeline_ranks) <= refused:
        return
    for finding in losses_and_gradients_are_right(aftermath.evidence):
        text = f"after {done_wrong(aftermath)}, and an error, the same pipeline is wrong: {finding.message}"
        kind = f"after an error: {finding.kind}"
        yield outcome_of(aftermath, Status.FAILED, worded(finding, kind=kind, message=text))
        return
