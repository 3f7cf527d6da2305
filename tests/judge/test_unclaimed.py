"""What results show beyond the claims."""

import dataclasses

import pytest
import torch

from pipeconform.adapter import Feature
from pipeconform.judge.unclaimed import returned_unclaimed
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Observation, StepShown, Structure
from tests.case.examples import EVERYTHING

VALUE = Array.of(torch.ones(2))
NOTHING = StepShown(step=0)
SHOWN = {
    Feature.OUTPUTS: {"output": Structure.of(torch.ones(2))},
    Feature.MICROBATCH_LOSSES: {"losses": (VALUE,)},
    Feature.INPUT_GRADIENTS: {"input_gradients": (None, VALUE)},
    Feature.STATE: {"buffers": {1: {"count": VALUE}}},
}
CLAIMS_NOTHING = dataclasses.replace(EVERYTHING, features=frozenset())


def shown(*steps):
    return [
        Observation(rank=rank, pipeline_rank=rank, steps=(NOTHING, step)) for rank, step in enumerate(steps)
    ]


@pytest.mark.parametrize("feature", SHOWN, ids=lambda one: one.value)
def test_what_is_returned_without_a_claim_is_named_once(feature):
    ranks = shown(NOTHING, StepShown(step=1, **SHOWN[feature]), StepShown(step=1, **SHOWN[feature]))

    assert returned_unclaimed(CLAIMS_NOTHING, ranks) == {feature}
    assert returned_unclaimed(EVERYTHING, ranks) == frozenset()


def test_parameters_are_state_like_buffers():
    ranks = shown(StepShown(step=1, parameters={0: {"weight": VALUE}}, buffers={0: {}}))

    assert returned_unclaimed(CLAIMS_NOTHING, ranks) == {Feature.STATE}


def test_empty_answers_show_nothing():
    empty = StepShown(step=1, losses=(), input_gradients=(None,), parameters={0: {}}, buffers={0: {}})

    assert returned_unclaimed(CLAIMS_NOTHING, shown(NOTHING, empty)) == frozenset()
