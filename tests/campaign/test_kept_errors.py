"""An exception that an engine keeps from one case is not told as what the next case raised."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.judging import judge
from pipeconform.campaign.preload import PRELOAD
from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World
from pipeconform.case.mistakes import Mistake
from pipeconform.execute.implementation import resolve
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirement

ENGINE = f"{Path(__file__).with_name('keeping_engine.py')}:Keeps"
FORWARD = Case(
    model=Model(width=1, stages=(Stage(blocks=(blocks.Linear(),)),) * 2),
    schedule="GPipe",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(
        Train(batch_size=2, num_microbatches=2, mistake=Mistake(where="forward", how="raise", stage=1)),
    ),
)
BACKWARD = structs.replace(
    FORWARD,
    program=(
        Train(batch_size=2, num_microbatches=2, mistake=Mistake(where="backward", how="raise", stage=1)),
    ),
)


@pytest.fixture(scope="module")
def executor():
    with Pools(preload=(*PRELOAD, "pipeconform.reference_impl.adapter")) as pools:
        full = resolve(ENGINE)
        yield Executor(implementation=full, description=describe(pools, full), pools=pools)


def last_stage(execution):
    return execution.failed[1]


def test_the_next_case_shows_its_own_error(executor):
    executor.restart(FORWARD)
    first, alone = last_stage(executor.execute(FORWARD)), last_stage(executor.execute(BACKWARD))
    executor.restart(BACKWARD)
    apart = last_stage(executor.execute(BACKWARD))

    assert not first.earlier
    assert alone.text == apart.text != first.text


def test_after_an_error_says_that_a_new_pipeline_fails(executor):
    execution = executor.execute(FORWARD, observe=("recovery",))
    (found,) = judge(requirement("ERR-11"), execution, executor)

    assert found.finding.kind.startswith("after an error: raised ")
