"""The first wrong tensor of implementations that are wrong at a place that is known."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.judging import judge
from pipeconform.campaign.localising import localise
from pipeconform.campaign.preload import PRELOAD
from pipeconform.campaign.trial import faults
from pipeconform.case.blocks import BatchNorm, Linear, Mlp
from pipeconform.case.case import Case, Kwarg, Model, Optimize, Sgd, Split, Stage, Train, World, Zero
from pipeconform.case.replicas import Replicas
from pipeconform.judge.localise.localisation import locate
from pipeconform.judge.whole_stages import by_stages
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirement
from tests.selected import first_of_each

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
    with Pools(preload=PRELOAD) as made:
        yield made


@pytest.mark.parametrize("name", first_of_each({one: one for one in PLACES}, lambda name: PLACES[name][1]))
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


def test_a_gradient_that_is_lost_is_no_factor(pools):
    reference = f"{Path(__file__).with_name('forgetful_engine.py')}:Forgets"
    executor = Executor(implementation=reference, description=describe(pools, reference), pools=pools)
    outcomes = judge(requirement("TRN-1"), executor.execute(PLAIN), executor)

    found = localise(PLAIN, outcomes, executor)

    assert found is not None
    assert found.first is not None
    assert (found.first.direction, found.first.step, found.first.microbatch) == ("loss", 0, 0)


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


ON_TWO_RANKS = _with(
    PLAIN,
    model={"stages": (Stage(blocks=(Linear(), BatchNorm())),) * 2},
    world=World(size=4, pipeline_ranks=(0, 1), replicas=Replicas(others=((2, 3),))),
)
IN_LONGER_REPLICAS = {
    # fault: requirement, direction, stage, microbatch, replica, rank, what else is told
    "stale-activation": ("DPC-1", "forward value", 1, 1, 0, 1, "input 0: it is microbatch 0's"),
    "gradient-of-neighbour": ("DPC-1", "output gradient", 0, 1, 0, 0, "it is microbatch 0's"),
    "never-synchronised": ("DPC-1", "weight gradient", 1, None, 0, 1, "blocks.0.weight"),
    "only-the-last-stage": ("DPC-1", "weight gradient", 0, None, 0, 0, "blocks.0.weight"),
    "buffers-of-the-first": ("DPC-3", "buffer", 0, None, 1, 2, "running_mean"),
}


@pytest.mark.parametrize("name", IN_LONGER_REPLICAS)
def test_in_replicas_of_several_stages_the_right_tensor_is_named(pools, name):
    asked, direction, stage, microbatch, replica, rank, told = IN_LONGER_REPLICAS[name]
    reference = faults()[name].reference
    executor = Executor(implementation=reference, description=describe(pools, reference), pools=pools)
    outcomes = judge(requirement(asked), executor.execute(ON_TWO_RANKS), executor)

    found = localise(ON_TWO_RANKS, outcomes, executor)

    assert found is not None
    assert found.first is not None
    first = found.first
    where = (first.direction, first.step, first.stage, first.microbatch, first.replica, first.rank)
    assert where == (direction, 0, stage, microbatch, replica, rank)
    assert told in f"{first.tensor}: {first.likeness}"
    assert found.bounded


SPLITS = {
    "annotations": Split(),
    "inside": Split(inside=True),
    "points": Split(by="points"),
    "points after": Split(by="points", after=True),
    "tied": Split(tied=True),
}
IN_TRACED_STAGES = {
    # fault: direction, stage, microbatch, what else is told
    "stale-activation": ("forward value", 1, 1, "input 0: it is microbatch 0's"),
    "not-divided": ("output gradient", 2, 0, "it is 3 times"),
    "cuts-detached": ("input gradient", 1, 0, "none passed"),
}


@pytest.mark.parametrize("name", IN_TRACED_STAGES)
@pytest.mark.parametrize("split", first_of_each({one: one for one in SPLITS}, lambda _: None))
def test_stages_that_a_front_end_made_are_localised_too(pools, name, split):
    direction, stage, microbatch, told = IN_TRACED_STAGES[name]
    reference = faults()[name].reference
    case = _with(PLAIN, model={"split": SPLITS[split]})
    executor = Executor(implementation=reference, description=describe(pools, reference), pools=pools)
    outcomes = judge(requirement("TRC-3"), executor.execute(case), executor)

    found = localise(case, outcomes, executor)

    assert found is not None
    assert found.first is not None
    first = found.first
    assert (first.direction, first.stage, first.microbatch) == (direction, stage, microbatch)
    assert told in f"{first.tensor}: {first.likeness}"
    assert found.bounded


RESULTS_ONLY = {
    # split: fault, direction, stage, what else is told
    Split(by="policy"): ("not-divided", "weight gradient", 2, "stages.2."),
    Split(skip=True): ("skips-detached", "weight gradient", 0, "stages.0.blocks.0.weight"),
}


@pytest.mark.parametrize("split", RESULTS_ONLY, ids=repr)
def test_where_it_is_not_known_what_crosses_a_cut_results_are_compared(pools, split):
    name, direction, stage, told = RESULTS_ONLY[split]
    reference = faults()[name].reference
    case = _with(PLAIN, model={"split": split})
    executor = Executor(implementation=reference, description=describe(pools, reference), pools=pools)
    outcomes = judge(requirement("TRC-3"), executor.execute(case), executor)

    found = localise(case, outcomes, executor)

    assert found is not None
    assert found.first is not None
    assert (found.first.direction, found.first.stage) == (direction, stage)
    assert told in found.first.tensor


@pytest.mark.parametrize(
    ("implementation", "splits"), [(REFERENCE, list(SPLITS)), ("torch", ["annotations", "points"])]
)
def test_nothing_is_wrong_in_traced_stages_of_an_implementation_that_is_right(pools, implementation, splits):
    """By hand: no verdict asks for it."""
    executor = Executor(
        implementation=implementation, description=describe(pools, implementation), pools=pools
    )
    for split in map(SPLITS.__getitem__, splits):
        case = _with(PLAIN, model={"split": split})
        execution = executor.execute(case, observe=("gradients",))
        found = locate(
            by_stages(executor.evidence(execution, flow=True)),
            by_stages(executor.evidence(execution, copied=True, flow=True)),
        )
        assert (found.first, found.wrong) == (None, 0)
        assert found.compared > 20
