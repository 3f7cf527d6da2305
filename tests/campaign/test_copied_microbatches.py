"""Bits depend on where a microbatch lies in memory; an engine may copy it or not."""

from pathlib import Path

import pytest

from pipeconform.adapter import GradientScale
from pipeconform.campaign.describing import describe
from pipeconform.campaign.executor import Executor
from pipeconform.campaign.judging import judge
from pipeconform.case import blocks
from pipeconform.case.case import Case, Model, Stage, Train, World, Zero
from pipeconform.oracle.full_model import reference
from pipeconform.ranks.pools import Pools
from pipeconform.spec import requirement

COPIES = f"{Path(__file__).with_name('copying_engine.py')}:Copies"
STEP = Train(batch_size=6, num_microbatches=2)
CASE = Case(
    model=Model(
        width=6,
        dtype="float32",
        stages=(Stage(blocks=(blocks.Linear(), blocks.Shared())), Stage(blocks=(blocks.Linear(),))),
    ),
    schedule="1F1B",
    world=World(size=2, pipeline_ranks=(0, 1)),
    program=(STEP, Zero(), STEP),
)
"""The second microbatch is a view that begins in the middle of a cache line."""


@pytest.fixture(scope="module")
def pools():
    with Pools(
        preload=("torch", "torch.distributed", "pipeconform.execute.worker", "pipeconform.oracle.full_model")
    ) as pools:
        yield pools


@pytest.mark.parametrize("implementation", ["reference", COPIES])
def test_an_engine_is_right_whether_it_copies_its_microbatches_or_not(pools, implementation):
    executor = Executor(
        implementation=implementation, description=describe(pools, implementation), pools=pools
    )

    assert judge(requirement("FWD-13"), executor.execute(CASE), executor) == ()


def test_copies_change_no_more_than_rounding():
    views, copies = (reference(CASE, scale=GradientScale(), copied=copied) for copied in (False, True))

    for one, other in zip(views.steps[0].outputs, copies.steps[0].outputs, strict=True):
        (a,), (b,) = one.leaves(), other.leaves()
        assert float((a.tensor() - b.tensor()).abs().max()) <= 1e-6
