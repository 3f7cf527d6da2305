"""Modules that an aborted step had are those of the next pipeline, in their first state."""

import pytest
import torch

from pipeconform.case import blocks
from pipeconform.case.build.modules import build_stage
from pipeconform.execute.kept_stages import KeptStages
from tests.judge.honest import of_blocks

CASE = of_blocks(blocks.Linear(), blocks.BatchNorm())


@pytest.fixture
def kept():
    """Stages in their first execution."""
    stages = KeptStages()
    stages.begin()
    return stages


@pytest.fixture
def module(kept):
    """What the first execution built as stage 0."""
    return kept.used_again(0, build_stage(CASE, 0))


def test_the_next_execution_has_the_module_of_the_last_one(kept, module):
    kept.begin()

    assert kept.used_again(0, build_stage(CASE, 0)) is module


def test_a_module_that_is_built_twice_in_an_execution_is_another_one(kept, module):
    kept.begin()
    kept.used_again(0, build_stage(CASE, 0))

    assert kept.used_again(0, build_stage(CASE, 0)) is not module


def test_it_has_the_state_of_one_just_built_and_no_gradients(kept, module):
    with torch.no_grad():
        for value in (*module.parameters(), *module.buffers()):
            value.add_(1)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
        parameter.requires_grad_(requires_grad=False)
    module.eval()
    kept.begin()

    again, built = kept.used_again(0, build_stage(CASE, 0)), build_stage(CASE, 0)

    assert again is module
    assert again.training
    assert all(torch.equal(one, built.state_dict()[name]) for name, one in again.state_dict().items())
    assert [one.requires_grad for one in again.parameters()] == [
        one.requires_grad for one in built.parameters()
    ]
    assert all(one.grad is None for one in again.parameters())


def test_hooks_that_were_left_stay(kept, module):
    seen = []
    module.register_forward_hook(lambda *_: seen.append("left"))
    kept.begin()

    kept.used_again(0, build_stage(CASE, 0))(torch.ones(2, CASE.model.width, dtype=torch.float64))

    assert seen == ["left"]


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.to(torch.float32),
        lambda module: module.blocks[1].norm.register_buffer("running_mean", None),
    ],
    ids=["dtype", "no buffer"],
)
def test_a_module_that_an_engine_changed_is_not_used_again(kept, module, change):
    change(module)
    kept.begin()
    built = build_stage(CASE, 0)

    assert kept.used_again(0, built) is built
