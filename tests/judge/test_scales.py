"""TRN-24: every rank reports the reference's scale of the loss."""

import pytest

from tests.judge.honest import changed, found, honest_example, told


def test_the_reference_lowers_its_scale_after_the_first_step_only():
    made = honest_example("scaled")

    assert [step.loss_scale for step in made.expected.steps] == [2.0**14, *[0.25] * 5]
    assert found("TRN-24", made) == []


def test_no_parameter_moves_in_the_step_that_overflows():
    before, after, *_, last = (step.parameters for step in honest_example("scaled").expected.steps)

    assert before == after != last


@pytest.mark.parametrize(
    ("mine", "kind"), [(2.0**14, "loss scale"), (0.125, "loss scale"), (None, "no loss scale")]
)
def test_a_rank_with_another_scale_is_named(mine, kind):
    made = changed(honest_example("scaled"), rank=1, step=1, loss_scale=mine)

    assert told("TRN-24", made) == [(kind, 1, 1, None, None)]
