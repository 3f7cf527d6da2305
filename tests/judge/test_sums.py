"""TRN-26: what is added up in float32, against numbers worked out by hand.

Of two microbatches of two columns every gradient is half of the inputs' sum: of 256 and 1, then of 1 and 1 more.
"""

import dataclasses

import pytest
import torch
from msgspec import structs

from pipeconform.case.case import Train, World, Zero
from pipeconform.case.replicas import Replicas
from pipeconform.judge.sums import sums_are_exact
from pipeconform.observe.array import Array
from tests.judge.honest import changed, found, honest_example, told

MADE = honest_example("sums")


def _shown(value, *, step, rank=1, dtype=torch.float32):
    """The second stage's gradient, replaced."""
    (name,) = MADE.expected.steps[step].gradients[rank]
    return changed(
        MADE, rank=rank, step=step, gradients={rank: {name: Array.of(torch.full((2,), value, dtype=dtype))}}
    )


def test_sums_of_microbatches_and_of_steps_are_right():
    assert found("TRN-26", MADE) == []


@pytest.mark.parametrize(
    ("step", "value"),
    [
        (0, 128.0),  # 256 and 1 in bfloat16
        (1, 128.5),  # the second step is lost
        (1, 130.0),  # 129.5 in bfloat16
        (1, 129.5 + 2.0**-12),
    ],
)
def test_a_sum_that_was_rounded_is_named_with_the_right_one(step, value):
    wrong = _shown(value, step=step)

    (finding,) = sums_are_exact(wrong)
    assert (finding.kind, finding.step, finding.rank, finding.stage) == ("sum not in float32", step, 1, 1)
    assert finding.message == (
        f"the gradient of blocks.0.weight in stage 1 is {value:.9g}; "
        f"added up in float32 it is {(128.5, 129.5)[step]}"
    )


def test_a_sum_in_bfloat16_is_wrong_even_if_its_value_is_right():
    made = _shown(128.0, step=0, dtype=torch.bfloat16)

    assert ("dtype of a sum", 0, 1, 1, None) in told("TRN-26", made)


def test_a_missing_gradient_is_for_others_to_judge():
    (name,) = MADE.expected.steps[0].gradients[0]
    assert list(sums_are_exact(changed(MADE, rank=0, step=0, gradients={0: {name: None}}))) == []


def test_models_that_round_are_not_looked_at():
    assert list(sums_are_exact(honest_example("accumulation"))) == []


def _of(case, *values):
    """Every rank's gradients, after each training step."""
    shown = []
    for one in MADE.shown:
        (name,) = MADE.expected.steps[0].gradients[one.rank]
        steps = [
            structs.replace(
                one.steps[0], step=i, gradients={one.rank: {name: Array.of(torch.full((2,), value))}}
            )
            for i, value in enumerate(values)
        ]
        shown.append(structs.replace(one, steps=tuple(steps)))
    expected = structs.replace(
        MADE.expected,
        steps=tuple(structs.replace(MADE.expected.steps[0], step=i) for i in range(len(values))),
    )
    return dataclasses.replace(MADE, case=case, shown=tuple(shown), expected=expected)


def test_cleared_gradients_begin_again_without_the_large_sample():
    pair = Train(batch_size=2, num_microbatches=2)
    case = structs.replace(MADE.case, program=(pair, Zero(), pair))

    assert list(sums_are_exact(_of(case, 128.5, 0.0, 1.0))) == []
    (first, second) = sums_are_exact(_of(case, 128.5, 0.0, 128.5))
    assert (first.step, first.rank, second.rank) == (2, 0, 1)


def test_of_three_microbatches_the_constant_is_rounded_but_no_sample_is_lost():
    case = structs.replace(MADE.case, program=(Train(batch_size=3, num_microbatches=3),))
    right = 258 / 3

    assert list(sums_are_exact(_of(case, right * (1 + 2.0**-9)))) == []
    assert len(list(sums_are_exact(_of(case, 256 / 3)))) == 2


def test_the_gradients_of_a_sum_are_not_divided():
    case = structs.replace(MADE.case, loss=structs.replace(MADE.case.loss, reduction="sum"))

    assert list(sums_are_exact(_of(structs.replace(case, program=case.program[:1]), 2 * 257.0))) == []


def test_replicas_have_the_mean_in_which_the_large_sample_is_one_of_four():
    case = structs.replace(
        MADE.case,
        program=MADE.case.program[:1],
        world=World(size=4, pipeline_ranks=(0, 1), replicas=Replicas(others=((2, 3),))),
    )

    assert list(sums_are_exact(_of(case, (128.5 + 1.0) / 2))) == []
    assert len(list(sums_are_exact(_of(case, 64.5)))) == 2
