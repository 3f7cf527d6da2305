"""The whole model's values, by the stages that a front end made."""

import functools

import pytest
import torch

from pipeconform.case.blocks import BatchNorm, Linear
from pipeconform.case.build.whole import aliases_of
from pipeconform.case.case import Model, Split, Stage, World
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.whole_stages import by_stages
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Observation, StepShown
from pipeconform.oracle.full_model import reference
from tests.case.examples import EVERYTHING
from tests.judge.honest import plain_case

STAGES = 3
CASE = plain_case(
    model=Model(width=3, stages=(Stage(blocks=(Linear(), BatchNorm())),) * STAGES, split=Split()),
    world=World(size=STAGES, pipeline_ranks=(0, 1, 2)),
)
VALUE = Array.of(torch.ones(3))
MOVED = "stages.1.blocks.0.bias"
"""What the front end gave to the first stage, although it was built for the second."""


@functools.cache
def expected(bounds="none"):
    return reference(CASE, scale=EVERYTHING.scale, bounds=bounds, flow=True)


@functools.cache
def told_apart():
    """Ranks 0 and 1 show what they hold and a constant of the front end's; the last shows nothing."""
    names = [name for name in expected().steps[0].gradients[0] if name.startswith("stages.")]
    first = [name for name in names if name.startswith("stages.0.")] + [MOVED]
    second = [name for name in names if name.startswith("stages.1.") and name != MOVED]
    steps = [
        StepShown(step=0, gradients={0: dict.fromkeys([*first, "_constant0"], VALUE)}),
        StepShown(step=0, gradients={1: dict.fromkeys(second, VALUE)}),
        StepShown(step=0),
    ]
    shown = tuple(Observation(rank=s, pipeline_rank=s, steps=(step,)) for s, step in enumerate(steps))
    made = Evidence(case=CASE, capabilities=EVERYTHING, shown=shown, expected=expected(), bounded=expected)
    return by_stages(made), set(names), set(first), set(second)


def test_values_belong_to_the_stage_that_shows_them_and_else_to_the_one_they_were_built_for():
    made, names, first, second = told_apart()
    gradients = made.expected.steps[0].gradients

    assert {s: set(own) for s, own in gradients.items()} == {0: first, 1: second, 2: names - first - second}
    whole = expected().steps[0].gradients[0]
    assert all(value is whole[name] for own in gradients.values() for name, value in own.items())
    assert {name.split(".")[1] for name in gradients[2]} == {"2"}


@pytest.mark.parametrize("what", ["parameters", "buffers", "gradients"])
def test_every_value_is_in_one_stage_and_bounds_are_beside_it(what):
    made, *_ = told_apart()
    bounded = made.bounded("running").steps[0]
    apart, bounds = getattr(bounded, what), getattr(bounded, f"{what.removesuffix('s')}_bounds")

    assert sorted(name for own in apart.values() for name in own) == sorted(
        name for name in getattr(expected("running").steps[0], what)[0] if name in aliases_of(CASE)
    )
    assert {s: own.keys() for s, own in bounds.items()} == {s: own.keys() for s, own in apart.items()}


def test_what_a_front_end_adds_to_the_model_is_left_out():
    made, _, first, second = told_apart()

    assert made.shown[0].steps[0].gradients[0].keys() == first
    assert made.shown[1].steps[0].gradients[1].keys() == second


def test_what_crosses_a_cut_is_the_input_of_the_stage_behind_it():
    made, *_ = told_apart()
    flow = {(one.stage, one.call): one.value for one in expected().steps[0].flow if one.kind == "input"}

    assert len(flow) == STAGES * CASE.runs[0].num_microbatches
    assert {
        (s, k): values[0].array
        for s, own in enumerate(made.expected.steps[0].inputs)
        for k, values in enumerate(own)
    } == flow
