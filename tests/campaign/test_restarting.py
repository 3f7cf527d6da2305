"""A pipeline that saves is closed, and another one with other parameters takes its place when all have saved."""

from pathlib import Path

import pytest
from msgspec import structs

from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.judging import judge
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Optimize, Restart, Sgd, Stage, Train, World, Zero
from pipeconform.execute.restarting import begun_anew
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirement

FILE = Path(__file__).with_name("saving_engines.py")
UPDATE = (Train(batch_size=4, num_microbatches=2), Optimize(), Zero())
CASE = Case(
    model=Model(width=3, stages=(Stage(blocks=(blocks.Linear(),)), Stage(blocks=(blocks.Linear(),)))),
    schedule="GPipe",
    world=World(size=3, pipeline_ranks=(0, 2)),
    program=(*UPDATE, Restart(), *UPDATE),
    optimizer=Sgd(lr=0.125, momentum=0.5),
)


@pytest.fixture(scope="module")
def pools():
    with Pools(preload=PRELOAD) as pools:
        yield pools


def executed(pools, implementation, case=CASE):
    executor = Executor(
        implementation=implementation, description=describe(pools, implementation), pools=pools
    )
    return executor, executor.execute(case)


def test_all_ranks_have_saved_before_one_restores_with_other_parameters(pools):
    executor, execution = executed(pools, f"{FILE}:NotesThem")

    assert execution.verdicts.ok, execution.verdicts.describe()
    assert judge(requirement("LIF-10"), execution, executor) == ()


@pytest.mark.parametrize(
    "implementation",
    [
        "pipeconform.reference_impl.adapter:ReferenceAdapter",
        "pipeconform.adapters.torch_pipelining:TorchPipelining",
    ],
)
def test_a_training_is_resumed_twice(pools, implementation):
    case = structs.replace(CASE, program=(*UPDATE, Restart(), *UPDATE, Restart(), *UPDATE))
    executor, execution = executed(pools, implementation, case)

    assert judge(requirement("LIF-10"), execution, executor) == ()


def test_the_pipeline_that_is_built_does_not_count_as_computing(pools):
    _, execution = executed(pools, f"{FILE}:NotesThem")

    at = CASE.program.index(Restart())
    assert [one.steps[at].forwards for one in execution.shown] == [()] * 3


def test_a_claim_without_the_methods_is_a_breach_of_the_contract(pools):
    _, execution = executed(pools, f"{FILE}:CannotSave")

    assert "lacks save() or restore(), but Feature.SAVING is claimed" in execution.verdicts.describe()


def test_only_the_parameters_differ_in_the_pipeline_that_takes_over():
    other = begun_anew(CASE)

    assert other.seed != CASE.seed
    assert structs.replace(other, seed=CASE.seed) == CASE
