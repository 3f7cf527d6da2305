"""Orders that the user asks for, in the place of the schedule's own."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.focus import Focus
from pipeconform.judge.conditions import SEVERAL_RANKS
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.forward import outputs_are_right
from pipeconform.judge.given_order import not_as_given
from pipeconform.judge.judgement import TIMELINE, requirement
from pipeconform.judge.training import gradients_are_right, losses_are_right
from pipeconform.spec.catalogue import MUST

from ..promises import FULL_MODEL, contract, documented, in_source


@requirement(
    "SCH-10",
    title="Orders of the user's own",
    level=MUST,
    about=(Focus.ORDERS,),
    observe=TIMELINE,
    costly=True,
    by_schedule=True,
    promise=(
        contract("Feature.TABLES: ranks compute in the order of Plan.table"),
        in_source(
            "torch.distributed.pipelining, _PipelineScheduleRuntime: a runtime for a schedule that is loaded",
            "distributed/pipelining/schedules.py",
        ),
    ),
)
def given_orders_are_carried_out(evidence: Evidence) -> Iterator[Finding]:
    """A step whose order the user gives as a table computes on every rank just what the table says, in its order,
    and outputs, losses and gradients are the full model's. Tables are any order in which a step can run, with the
    microbatches of every stage in turn.

    Who writes a table of their own has planned memory and overlap by it; and a runtime that is right only for the
    schedules that it comes with is wrong for the next one.
    """
    yield from outputs_are_right(evidence)
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)
    yield from not_as_given(evidence)


@requirement(
    "SCH-11",
    title="Microbatches in any order",
    level=MUST,
    about=(Focus.ANY_ORDERS,),
    observe=TIMELINE,
    tolerates=(Focus.ANY_ORDERS,),
    costly=True,
    by_schedule=True,
    promise=(FULL_MODEL, contract("Feature.TABLES: ranks compute in the order of Plan.table")),
)
def microbatches_in_any_order(evidence: Evidence) -> Iterator[Finding]:
    """A table in which stages take microbatches in another order than 0 to m-1 is refused on every rank, or carried
    out: outputs and losses come back in the batch's order, and every backward takes its own microbatch's loss.

    A list to which results are appended as they are computed is in the batch's order only while every schedule is.
    """
    yield from outputs_are_right(evidence)
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)
    yield from not_as_given(evidence)


@requirement(
    "SCH-13",
    title="Schedules that are written and read again",
    level=MUST,
    about=(Focus.WRITTEN,),
    observe=TIMELINE,
    by_schedule=True,
    promise=(
        contract("Feature.WRITTEN_TABLES: what ranks do in a step may be written to a file and read again"),
        in_source(
            "torch.distributed.pipelining, _Action.from_str: reverse of __repr__",
            "distributed/pipelining/schedules.py",
        ),
    ),
)
def written_schedules_are_the_same(evidence: Evidence) -> Iterator[Finding]:
    """A schedule that the engine writes to a file and reads again does what it did: outputs, losses and gradients are
    the full model's, and an order of the user's own is carried out as it was given.

    Schedules are written to be looked at, edited by hand and kept beside a run's configuration; a kind of computation
    that is written in one way and read in another is lost without a word.
    """
    yield from outputs_are_right(evidence)
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)
    if evidence.case.world.order is not None:
        yield from not_as_given(evidence)


@requirement(
    "SCH-12",
    title="Receives that are posted late",
    level=MUST,
    about=(Focus.LATE_RECEIVES,),
    condition=SEVERAL_RANKS,
    promise=(
        contract("Feature.LATE_RECEIVES: receives are posted as late as possible"),
        documented(
            "torch.distributed.pipelining documentation, defer_pp_recv", "distributed.pipelining.html"
        ),
    ),
)
def late_receives_change_no_values(evidence: Evidence) -> Iterator[Finding]:
    """If receives are posted as late as possible, outputs, losses and gradients are the same as without that.

    Messages between two ranks are matched in order. A receive that is moved behind another one of the same rank takes
    the other's message: an activation is used as a gradient, without an error if both have the same size.
    """
    yield from outputs_are_right(evidence)
    yield from losses_are_right(evidence)
    yield from gradients_are_right(evidence)
