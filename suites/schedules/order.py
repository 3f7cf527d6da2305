"""Which computations run, in which order, and where."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.adapter import Feature
from pipeconform.case.case import Eval
from pipeconform.case.focus import Focus
from pipeconform.judge.conditions import EVALUATION, SEVERAL_RANKS
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.forward import outputs_are_right
from pipeconform.judge.judgement import TIMELINE, requirement
from pipeconform.judge.schedules import (
    bounds_of,
    counted_once,
    declared_in_flight,
    departures,
    most_in_flight,
    named_runs,
    possible_order,
)
from pipeconform.judge.timeline import executed
from pipeconform.spec.catalogue import MUST

from ..promises import PLACEMENTS, SCHEDULES, in_source, paper


@requirement(
    "SCH-1",
    title="Every computation once",
    level=MUST,
    about=(Focus.PLAIN,),
    observe=TIMELINE,
    promise=(
        paper("GPipe (arXiv:1811.06965)"),
        paper("Zero Bubble Pipeline Parallelism (arXiv:2401.10241), section 2"),
    ),
)
def every_computation_runs_once(evidence: Evidence) -> Iterator[Finding]:
    """In a step, every stage runs every microbatch's forward (F) exactly once, and its backward exactly once,
    either whole (B) or as input part (I) and weight part (W); no other microbatch runs; F comes before B or
    I, I before W, and on one rank a stage comes after its predecessor. Dry runs before a rank's first forward
    and recomputation inside a backward are recognised and not counted.

    A microbatch that runs twice, or a weight part left over, costs time and memory even where the numbers
    come out right, and breaks whatever relies on one call per microbatch.
    """
    for expected in evidence.runs():
        ranks = executed(evidence, expected.step)
        yield from counted_once(evidence, expected.step, ranks)
        for one in ranks:
            evidence.compared(len(one.actions))
            yield from possible_order(one, step=expected.step)


@requirement(
    "SCH-2",
    title="The schedule that was named",
    level=MUST,
    about=(Focus.PLAIN,),
    observe=TIMELINE,
    named=True,
    promise=SCHEDULES,
)
def the_order_is_the_named_schedules(evidence: Evidence) -> Iterator[Finding]:
    """The computations of every rank run in the order of the schedule that was named, except where its
    definition leaves the order free: that of microbatches in the backward (GPipe, looped BFS), that of the
    two parts of an overlapped pair, and either warm-up of interleaved 1F1B.

    An engine that quietly runs another order has a memory footprint and a bubble that its user did not plan
    for.
    """
    for step, size, families in named_runs(evidence):
        ranks = executed(evidence, step)
        evidence.compared(len(ranks))
        found: list[Finding] = []
        for family in families:
            found = list(departures(step, ranks, family, size))
            if not found:
                break
        yield from found


@requirement(
    "SCH-3",
    title="Microbatches in flight",
    level=MUST,
    about=(Focus.PLAIN,),
    trains=True,
    observe=TIMELINE,
    named=True,
    promise=(
        paper("PipeDream-2BW (arXiv:2006.09503)"),
        paper("DAPPLE (arXiv:2007.01045)"),
        paper("Zero Bubble Pipeline Parallelism (arXiv:2401.10241)"),
    ),
)
def no_rank_holds_more_than_the_bound(evidence: Evidence) -> Iterator[Finding]:
    """At no time does a rank hold more forwards with an outstanding backward than the named schedule's bound
    allows, counted up to the input part and up to the weight part, neither as executed nor in the table that
    the implementation declares.

    The schedule was chosen for the memory of this bound; one microbatch more runs out of memory on the
    largest model, and nowhere else.
    """
    for step, size, families in named_runs(evidence):
        for one in executed(evidence, step):
            for until, bound in bounds_of(families, one.pipeline_rank, size):
                evidence.compared()
                most, after = most_in_flight(one.actions, one.parts, until=until)
                if most > bound:
                    text = (
                        f"pipeline rank {one.pipeline_rank} holds {most} microbatches up to {until.name} after "
                        f"{after}; the bound of {families[0].title} is {bound} (p={size.num_ranks}, "
                        f"v={size.stages_per_rank}, m={size.num_microbatches})"
                    )
                    position = one.actions.index(after) if after is not None else None
                    yield Finding(
                        kind="too many in flight", message=text, step=step, rank=one.rank, position=position
                    )
                    break
    yield from declared_in_flight(evidence)


@requirement(
    "SCH-7",
    title="Placement",
    level=MUST,
    about=(Focus.PLAIN,),
    observe=TIMELINE,
    condition=SEVERAL_RANKS,
    promise=PLACEMENTS,
)
def stages_run_where_they_are_placed(evidence: Evidence) -> Iterator[Finding]:
    """Every stage runs on the ranks on which the contract places it (loop, V, mirror), and nowhere else.

    Weights are loaded, saved and sharded by placement; a stage that runs elsewhere trains another copy.
    """
    for expected in evidence.runs():
        for one in executed(evidence, expected.step):
            for s in sorted({action.stage for action in one.actions} | set(one.probes)):
                owners = evidence.placement[s]
                evidence.compared()
                if one.pipeline_rank not in owners:
                    ranks = ", ".join(map(str, sorted(owners)))
                    text = f"stage {s} ran on pipeline rank {one.pipeline_rank}; it is placed on {ranks}"
                    yield Finding(
                        kind="stage on another rank",
                        message=text,
                        step=expected.step,
                        rank=one.rank,
                        stage=s,
                        position=next((n for n, a in enumerate(one.actions) if a.stage == s), None),
                    )


@requirement(
    "SCH-9",
    title="Evaluation",
    level=MUST,
    about=(Focus.PLAIN, Focus.EVAL),
    evaluates=True,
    observe=TIMELINE,
    needs=(Feature.EVAL,),
    condition=EVALUATION,
    promise=in_source(
        "torch.distributed.pipelining documentation, PipelineSchedule.eval",
        "distributed/pipelining/schedules.py",
    ),
)
def every_schedule_evaluates(evidence: Evidence) -> Iterator[Finding]:
    """Every schedule that is offered for evaluation evaluates as well as it trains: every stage runs every
    microbatch's forward exactly once, no backward runs, and outputs are the reference's.

    Evaluation takes another path through an engine's schedule code than training does, and is rarely tested.
    """
    for expected in evidence.runs(Eval):
        ranks = executed(evidence, expected.step)
        yield from counted_once(evidence, expected.step, ranks)
        for one in ranks:
            yield from possible_order(one, step=expected.step)
    for finding in outputs_are_right(evidence.uncounted):
        if finding.step is not None and isinstance(evidence.case.program[finding.step], Eval):
            yield finding
