"""The first wrong tensor of implementations that are wrong at a place that is known."""

from __future__ import annotations

import msgspec
import pytest

from pipeconform.campaign.executor import Executor, describe
from pipeconform.campaign.judging import judge
from pipeconform.campaign.localising import localise
from pipeconform.campaign.trial import faults
from pipeconform.case.blocks import BatchNorm, Linear, Mlp
from pipeconform.case.case import Case, Kwarg, Model, Optimize, Sgd, Stage, Train, World, Zero
from pipeconform.case.replicas import Replicas
from pipeconform.run.pools import Pools
from pipeconform.spec import requirement

REFERENCE = "pipeconform.reference_impl.adapter:ReferenceAdapter"
M = 3
STEP = Train(batch_size=2 * M, num_microbatches=M)
PLAIN = Case(
    model=Model(width=4, stages=(Stage(blocks=(Linear(), Mlp())),) * 3),
    schedule="1F1B",
    world=World(size=3, pipeline_ranks=(0, 1, 2)),
    program=(STEP,),
    seed=5,
)


def _with(case: Case, *, model: dict[str, object] | None = None, **changes: object) -> Case:
    return msgspec.structs.replace(
        case, model=msgspec.structs.replace(case.model, **(model or {})), **changes
    )


TWO_STEPS = _with(PLAIN, program=(STEP, STEP))
CARRYING = _with(PLAIN, model={"carried": ("stream",), "container": "tuple"})
BY_NAME = _with(PLAIN, model={"kwargs": (Kwarg(stage=1),)})
NORMED = _with(PLAIN, model={"stages": (Stage(blocks=(Linear(), BatchNorm())),) * 3})
UPDATED = _with(PLAIN, program=(STEP, Optimize(), Zero(), STEP), optimizer=Sgd(lr=0.125))

PLACES = {
    # fault: case, direction, step, stage, microbatch, what else is told
    "rounded-to-bfloat16": (
        PLAIN,
        "forward value",
        0,
        1,
        0,
        "input 0: it is the reference's, rounded to bfloat16",
    ),
    "stale-activation": (PLAIN, "forward value", 0, 1, 1, "input 0: it is microbatch 0's"),
    "only-first-refreshed": (CARRYING, "forward value", 0, 1, 1, "input 1: it is microbatch 0's"),
    "kwargs-shifted": (BY_NAME, "forward value", 0, 1, 0, "output 0:"),
    "outputs-swapped": (PLAIN, "forward value", 0, 2, 0, "returned output:"),
    "targets-shifted": (PLAIN, "loss", 0, 2, 0, "loss:"),
    "losses-reversed": (PLAIN, "loss", 0, 2, 0, "loss: it is microbatch 2's"),
    "not-divided": (PLAIN, "output gradient", 0, 2, 0, "it is 3 times"),
    "one-stage-scaled": (PLAIN, "output gradient", 0, 0, 0, "it is 0.25 times"),
    "second-gradient-halved": (CARRYING, "output gradient", 0, 1, 0, "output 1: it is 0.5 times"),
    "gradient-of-neighbour": (PLAIN, "output gradient", 0, 1, 1, "it is microbatch 0's"),
    "gradient-rounded": (PLAIN, "output gradient", 0, 1, 0, "rounded to bfloat16"),
    "one-microbatch-scaled": (PLAIN, "output gradient", 0, 1, 1, "it is 1.5 times"),
    "first-stage-missing": (PLAIN, "output gradient", 0, 0, 0, "none passed"),
    "boundary-detached": (PLAIN, "input gradient", 0, 2, 0, "none passed"),
    "one-parameter-missing": (PLAIN, "weight gradient", 0, 2, None, "blocks.1.down.bias"),
    "accumulated-twice": (PLAIN, "weight gradient", 0, 1, None, "blocks.0.weight"),
    "weight-part-twice": (PLAIN, "weight gradient", 0, 2, None, "blocks.0.weight"),
    "buffer-reused": (PLAIN, "weight gradient", 0, 2, None, "blocks.0.weight"),
    "accumulation-lost": (TWO_STEPS, "weight gradient", 1, 2, None, "blocks.0.weight"),
    "earlier-rescaled": (TWO_STEPS, "weight gradient", 1, 2, None, "blocks.0.weight"),
    "dry-run": (NORMED, "buffer", 0, 0, None, "running_mean"),
    "first-stage-not-updated": (UPDATED, "parameter", 1, 0, None, "blocks.0.weight"),
}


@pytest.fixture(scope="module")
def pools():
    with Pools() as made:
        yield made


@pytest.mark.parametrize("name", PLACES)
def test_the_first_wrong_tensor_is_the_one_that_the_fault_makes_wrong(pools, name):
    case, direction, step, stage, microbatch, told = PLACES[name]
    fault = faults()[name]
    case = msgspec.structs.replace(case, schedule=fault.schedule)
    executor = Executor(
        implementation=fault.reference, description=describe(pools, fault.reference), pools=pools
    )
    outcomes = judge(requirement(_asked(name)), executor.execute(case), executor)

    found = localise(case, outcomes, executor)

    assert found is not None
    assert found.first is not None
    first = found.first
    assert (first.direction, first.step, first.stage, first.microbatch) == (
        direction,
        step,
        stage,
        microbatch,
    )
    assert told in f"{first.tensor}: {first.likeness}"
    assert found.bounded
    marked = next(lane for lane in found.lanes if "x" in lane.marks)
    assert (marked.direction, marked.stage) == (direction, stage)


def _asked(name: str) -> str:
    """A requirement that is about the case above and notices the fault."""
    if name in ("outputs-swapped", "losses-reversed", "dry-run", "first-stage-not-updated"):
        return faults()[name].requirement
    return "TRN-1"


REPLICATED = _with(
    PLAIN,
    model={"stages": (Stage(blocks=(Linear(), BatchNorm())),)},
    world=World(size=2, pipeline_ranks=(0,), replicas=Replicas(others=((1,),))),
)
IN_REPLICAS = {
    # fault: requirement, direction, microbatch, replica
    "one-stage-scaled": ("DPC-1", "output gradient", 0, 0),
    "buffers-of-the-first": ("DPC-3", "buffer", None, 1),
}


@pytest.mark.parametrize("name", IN_REPLICAS)
def test_of_replicas_the_first_wrong_one_is_named(pools, name):
    asked, direction, microbatch, replica = IN_REPLICAS[name]
    reference = faults()[name].reference
    executor = Executor(implementation=reference, description=describe(pools, reference), pools=pools)
    outcomes = judge(requirement(asked), executor.execute(REPLICATED), executor)

    found = localise(REPLICATED, outcomes, executor)

    assert found is not None
    assert found.first is not None
    first = found.first
    told = (first.direction, first.step, first.stage, first.microbatch, first.replica, first.rank)
    assert told == (direction, 0, 0, microbatch, replica, replica)
    assert f"of replica {replica}" in first.where()
    assert found.bounded
