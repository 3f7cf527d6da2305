"""Plans that are wrong, or not the same on all ranks."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.focus import Focus
from pipeconform.judge.aftermath import Aftermath
from pipeconform.judge.conditions import SEVERAL_STAGES
from pipeconform.judge.judgement import LONELINESS, after_mistakes
from pipeconform.judge.misplanned import plans_are_refused
from pipeconform.judge.outcome import Outcome
from pipeconform.spec.catalogue import MUST

from ..promises import DECLARED, FULL_MODEL, documented, in_source


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
    """Where a user can say what stages take and give before anything has run: a stage that says that it gives
    tensors of another shape or dtype than the stage after it says that it takes is the declared error on every
    rank while the pipeline is built, which names both stages. Where no error is declared, the result is right
    nevertheless, or there is an error; nobody hangs or dies, also while the rank that raised stays connected.

    Receivers allocate what they were told; the disagreement of two files or two configurations must not become
    a wrong byte count in the first step.
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
    """A number of stages that is no multiple of the number of ranks, several stages per rank under a schedule
    for one, a schedule that there is not, ranks that were told of different numbers of stages or microbatches,
    and boundaries that are declared on some ranks only, are the declared error on every rank, which says what
    is wrong. Where no error is declared, the result is right by the plan of some rank, or there is an error;
    nobody hangs or dies, also while a rank that raised stays connected.

    Configurations are read on every rank by itself; a rank that finds the mistake alone leaves all others
    waiting for it.
    """
    yield from plans_are_refused(aftermath)
