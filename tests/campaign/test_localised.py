"""What is executed to find the first wrong tensor, and when nothing is; ranks answer what a test says."""

from __future__ import annotations

import pytest
import torch
from msgspec import structs

from pipeconform.adapter import Description
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.localising import localise
from pipeconform.case.blocks import Linear, Mlp, SyncedNorm
from pipeconform.case.case import Model, Split, Stage, World
from pipeconform.case.mistakes import Mistake
from pipeconform.case.replicas import Replicas
from pipeconform.case.tensor_parallel import TensorParallel
from pipeconform.judge.finding import Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Observation, StepShown, Structure
from pipeconform.oracle.full_model import reference
from pipeconform.ranks.verdict import Died
from tests.campaign.answering import Answering, honest_ranks
from tests.case.examples import EVERYTHING, small_case, with_model

PLAIN = small_case()
REPLICATED = small_case(
    model=structs.replace(PLAIN.model, stages=PLAIN.model.stages[:1]),
    world=World(size=2, pipeline_ranks=(0,), replicas=Replicas(others=((1,),))),
)
WRONG_VALUE = Outcome(Status.FAILED, Finding(kind="gradient value", message="wrong"))
WRONG_ORDER = Outcome(Status.FAILED, Finding(kind="order", message="wrong"))


def executor_of(ranks):
    return Executor(
        implementation="it:It",
        description=Description(name="it", version="1", capabilities=EVERYTHING),
        pools=Answering(ranks),
    )


def doubled_on(rank, shown=None):
    """Ranks that are right, but that one shows gradients twice as large."""

    def twice(step):
        gradients = {
            stage: {name: one and Array.of(one.tensor() * 2) for name, one in own.items()}
            for stage, own in step.gradients.items()
        }
        return structs.replace(step, gradients=gradients)

    def ranks(job):
        return [
            structs.replace(one, steps=tuple(map(twice, one.steps))) if one.rank == rank else one
            for one in shown or honest_ranks(job)
        ]

    return ranks


def holding_one_stage_each(case):
    """What two ranks show that each hold one stage of a model which a front end split."""

    def part(values, rank):
        return {rank: {name: one for name, one in values[0].items() if name.startswith(f"stages.{rank}.")}}

    expected = reference(case, scale=EVERYTHING.scale)
    return [
        Observation(
            rank=rank,
            pipeline_rank=rank,
            steps=tuple(
                StepShown(
                    step=one.step,
                    output=Structure.of(torch.cat([part.leaves()[0].tensor() for part in one.outputs]))
                    if rank and one.outputs
                    else None,
                    losses=one.losses if rank and one.losses else None,
                    gradients=part(one.gradients, rank),
                    parameters=part(one.parameters, rank),
                )
                for one in expected.steps
            ),
        )
        for rank in range(2)
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_pipeline_that_is_wrong_is_executed_once_more_and_its_first_wrong_tensor_named(rank):
    executor = executor_of(doubled_on(rank))
    found = localise(PLAIN, [WRONG_ORDER, WRONG_VALUE], executor)

    assert [job.observe for job in executor.pools.jobs] == [("gradients",)]
    assert (found.first.direction, found.first.stage, found.first.rank) == ("weight gradient", rank, rank)
    assert found.first.replica is None


@pytest.mark.parametrize("rank", [0, 1])
def test_of_replicas_each_is_compared_with_the_model_on_its_own_data(rank):
    found = localise(REPLICATED, [WRONG_VALUE], executor_of(doubled_on(rank)))

    assert (found.first.replica, found.first.rank) == (rank, rank)


@pytest.mark.parametrize("by", ["annotations", "points"])
@pytest.mark.parametrize("wrong", [None, 0, 1])
def test_stages_of_a_front_end_are_compared_by_what_they_hold(by, wrong):
    """The oracle does not know where the front end cuts: all that it has is of one stage."""
    case = with_model(PLAIN, split=Split(by=by))
    shown = holding_one_stage_each(case)
    found = localise(case, [WRONG_VALUE], executor_of(doubled_on(wrong, shown)))

    assert found.wrong == (0 if wrong is None else 2)
    first = found.first and (found.first.direction, found.first.stage)
    assert first == (None if wrong is None else ("weight gradient", wrong))


def test_nothing_is_executed_where_no_value_is_wrong():
    executor = executor_of(doubled_on(1))

    assert localise(PLAIN, [WRONG_ORDER], executor) is None
    assert localise(PLAIN, [], executor) is None
    assert executor.pools.jobs == []


MISTAKEN = structs.replace(
    PLAIN,
    program=(structs.replace(PLAIN.program[0], mistake=Mistake(where="forward", how="raise", stage=1)),),
)
CUT = small_case(
    model=Model(width=4, sequence=2, stages=(Stage(blocks=(Mlp(), Linear())),)),
    world=World(size=2, pipeline_ranks=(0,), tensor=TensorParallel(others=((1,),), maps="column")),
)
SYNCED = structs.replace(
    REPLICATED, model=structs.replace(PLAIN.model, stages=(Stage(blocks=(Linear(), SyncedNorm())),))
)


@pytest.mark.parametrize(
    "case", [MISTAKEN, CUT, SYNCED], ids=["a mistake", "stages cut", "a synchronised norm"]
)
def test_nothing_is_executed_where_ranks_compute_together_or_a_mistake_is_meant(case):
    executor = executor_of(honest_ranks)

    assert localise(case, [WRONG_VALUE], executor) is None
    assert executor.pools.jobs == []


def test_an_execution_that_ends_otherwise_this_time_locates_nothing():
    executor = executor_of(lambda job: (Died(signal="SIGSEGV"), *list(honest_ranks(job))[1:]))

    assert localise(PLAIN, [WRONG_VALUE], executor) is None
    assert len(executor.pools.jobs) == 1
