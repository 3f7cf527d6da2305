"""What a stage was before an engine had it, and what differs afterwards."""

import pytest
from msgspec import structs
from torch import nn

from pipeconform.case import blocks
from pipeconform.case.build.modules import build_stage
from pipeconform.case.model import Split
from pipeconform.execute.initial import Initials, InitialStage
from pipeconform.observe.array import Array
from tests.judge.honest import of_blocks

CASE = of_blocks(blocks.Linear(), blocks.BatchNorm())


def test_an_untouched_stage_has_no_changes():
    module = build_stage(CASE, 0)

    assert InitialStage.of(module).changes(module) == []


def _freeze(module):
    module.blocks[0].weight.requires_grad_(requires_grad=False)


def _hook_a_parameter(module):
    module.blocks[0].weight.register_post_accumulate_grad_hook(lambda parameter: None)


def _hook_a_module(module):
    module.blocks[1].register_forward_hook(lambda *_: None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_freeze, "requires_grad of blocks.0.weight became False"),
        (lambda module: module.blocks[1].eval(), "module blocks.1 is in eval mode"),
    ],
)
def test_what_an_engine_changed_is_named(change, said):
    module = build_stage(CASE, 0)
    initial = InitialStage.of(module)
    change(module)

    assert said in initial.changes(module)


def test_hooks_of_the_engine_s_own_are_no_change():
    module = build_stage(CASE, 0)
    initial = InitialStage.of(module)
    _hook_a_parameter(module)
    _hook_a_module(module)

    assert initial.changes(module) == []


def test_a_wrapped_module_is_skipped():
    module = build_stage(CASE, 0)

    assert InitialStage.of(module).changes(nn.Sequential(module)) == []


def test_values_are_those_at_the_time_of_recording():
    module = build_stage(CASE, 0)
    initials = Initials(CASE)
    initials.note(0, module)
    before = Array.of(module.blocks[0].weight)
    module.blocks[0].weight.data.add_(1.0)

    assert initials.of(0).values["blocks.0.weight"] == before != Array.of(module.blocks[0].weight)


def test_what_was_not_noted_is_built():
    built = InitialStage.of(build_stage(CASE, 1))

    assert Initials(CASE).of(1) == built


def test_names_are_those_of_parameters_without_buffers():
    names = Initials(CASE).parameter_names(0)

    assert {"blocks.0.weight", "blocks.1.norm.weight"} <= names
    assert "blocks.1.norm.running_mean" not in names


def test_a_shared_parameter_has_each_name_that_its_builder_gave():
    initials = Initials(of_blocks(blocks.Tied(), blocks.Linear()))
    names = initials.given_names(0)

    assert names is not None
    assert {"blocks.0.first.weight", "blocks.0.second.weight"} <= names
    assert "blocks.0.second.weight" not in initials.parameter_names(0)


def test_names_that_a_front_end_gives_are_its_own():
    case = structs.replace(CASE, model=structs.replace(CASE.model, split=Split()))

    assert Initials(case).given_names(0) is None
