"""What a rank says about where it stands, while it computes or waits."""

import pytest
import torch

from pipeconform.observe.recorder import ForwardRecorder


@pytest.fixture
def recorder():
    found = ForwardRecorder()
    found.step = 1
    return found


def compute(recorder, *stages, gradients=True):
    value = torch.ones(1)
    with torch.set_grad_enabled(gradients):
        for stage in stages:
            recorder.forward(stage, (value,), value, [], training=True)


def test_forwards_are_counted_from_0_as_in_schedules(recorder):
    compute(recorder, 0, 2, 0, 2, 0)

    assert recorder.standing() == "step 1, last computed: 0F2"


def test_a_dry_run_before_the_step_is_no_microbatch(recorder):
    compute(recorder, 0, gradients=False)
    compute(recorder, 0, 0)

    assert recorder.standing() == "step 1, last computed: 0F1"


def test_an_evaluation_counts_its_forwards(recorder):
    compute(recorder, 3, 3, gradients=False)

    assert recorder.standing() == "step 1, last computed: 3F1"


def test_before_any_computation_there_is_only_the_place(recorder):
    recorder.step = None

    assert recorder.standing() == "outside of any step, nothing computed yet"
