"""Plans that are wrong, or that differ between ranks."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.focus import Focus
from pipeconform.judge.aftermath import Aftermath
from pipeconform.judge.conditions import SEVERAL_RANKS, SEVERAL_STAGES
from pipeconform.judge.judgement import LONELINESS, after_mistakes, of_refusals
from pipeconform.judge.misplanned import plans_are_refused
from pipeconform.judge.outcome import Outcome
from pipeconform.judge.refusals import Refusal, misplaced_stages_are_refused
from pipeconform.spec.catalogue import MUST, SHOULD

from ..promises import DECLARED, FULL_MODEL, HANDLED, PLACEMENTS, documented, in_source


@after_mistakes(
    "ERR-8",
    title="Stages that disagree",
    level=MUST,
    about=(Focus.NEIGHBOURS,),
    observe=LONELINESS,
    condition=SEVERAL_STAGES,
    promise=(
        DECLARED,
        FULL_MODEL,
        documented(
            "torch.distributed.pipelining, PipelineStage(input_args=…, output_args=…)",
            "distributed.pipelining.html#torch.distributed.pipelining.stage.PipelineStage",
        ),
    ),
)
def stages_that_disagree(aftermath: Aftermath) -> Iterator[Outcome]:
    """Where a user can say, before anything has run, what stages take and give: when the stated output of a
    stage has another shape or dtype than the stated input of the next stage, every rank raises the declared
    error while the pipeline is built, and the error names both stages. Where no error is declared, the result
    is right nevertheless, or there is an error; no rank hangs or dies, even while the rank that raised stays
    connected.

    Receivers allocate what was stated; two files or two configurations that disagree must not become a wrong
    byte count in the first step.
    """
    yield from plans_are_refused(aftermath)


@after_mistakes(
    "ERR-9",
    title="Wrong plans",
    level=MUST,
    about=(Focus.MISPLANNED,),
    observe=LONELINESS,
    promise=(
        DECLARED,
        FULL_MODEL,
        in_source(
            "torch.distributed.pipelining, PipelineStage and get_schedule_class",
            "distributed/pipelining/schedules.py",
        ),
    ),
)
def wrong_plans(aftermath: Aftermath) -> Iterator[Outcome]:
    """Each of these raises the declared error, which says what is wrong, on every rank: a number of stages
    that is not a multiple of the number of ranks, several stages per rank under a schedule for one, a
    schedule that does not exist, ranks that are given different numbers of stages or microbatches, and
    boundaries that are declared on some ranks only. Where no error is declared, the result is right by the
    plan of some rank, or there is an error; no rank hangs or dies, even while a rank that raised stays
    connected.

    Every rank reads its own configuration; a rank that finds the mistake alone leaves all others waiting for
    it.
    """
    yield from plans_are_refused(aftermath)


@after_mistakes(
    "ERR-19",
    title="Tables that cannot be carried out",
    level=MUST,
    about=(Focus.WRONG_TABLE,),
    observe=LONELINESS,
    promise=(
        DECLARED,
        FULL_MODEL,
        in_source(
            "torch.distributed.pipelining, _validate_schedule: the actions of every stage are counted, "
            "and their order is checked",
            "distributed/pipelining/schedules.py",
        ),
    ),
)
def tables_that_cannot_be_carried_out(aftermath: Aftermath) -> Iterator[Outcome]:
    """Where a step's order is the user's own, each of these mistakes in the table raises the declared error, which says
    what is wrong, on every rank: a forward or a backward is missing, or there twice; a backward is before its forward;
    there is a microbatch that the step does not have, or a cell that is no computation; two ranks wait for each
    other; a rank's line is missing, or has the stages of another rank. Where no error is declared, the result is right
    nevertheless, or there is an error; no rank hangs or dies, even while a rank that raised stays connected.

    A table is written by hand or by a script, and its mistakes are found by whoever checks it before the step, or by
    a job that stands still.
    """
    yield from plans_are_refused(aftermath)


@of_refusals(
    "ERR-16",
    title="Misplaced stages",
    level=SHOULD,
    about=(Focus.MISPLACED,),
    trains=True,
    condition=SEVERAL_RANKS,
    promise=(*PLACEMENTS, HANDLED),
)
def misplaced_stages(refusal: Refusal) -> Iterator[Outcome]:
    """A schedule that is given its stages in a placement other than its own refuses them: every rank that can
    know raises an error that mentions the placement, or stages and ranks; none of them hangs, and none dies.
    The middle one of an odd number of ranks cannot know: a loop and a V give it the same two stages.

    Every rank computes the placement by itself and could compare it with the stages that it was given. No
    engine promises that it does, so this is no MUST.
    """
    yield from misplaced_stages_are_refused(refusal)
