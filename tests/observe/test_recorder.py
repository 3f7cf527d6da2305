"""What a rank records of its forwards, and says about where it stands while it computes or waits."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from pipeconform.case.build.modules import build_stage
from pipeconform.observe.recorder import ForwardRecorder
from tests.case.examples import small_case


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


def test_inside_of_a_call_that_computes_no_stage_there_is_its_name(recorder):
    compute(recorder, 0)

    with recorder.inside_call("restore()"):
        assert recorder.standing() == "step 1, inside restore()"
    assert recorder.standing() == "step 1, last computed: 0F0"


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_a_checkpoint_computes_again_ran_in_a_backward(recorder, use_reentrant):
    case = small_case()
    stage = build_stage(case, 0)
    stage.recorder = recorder
    given = torch.ones(2, case.model.width, dtype=torch.float64, requires_grad=True)

    with set_checkpoint_early_stop(False):
        checkpoint(stage, given, use_reentrant=use_reentrant).sum().backward()

    assert [one.in_backward for one in recorder.take()] == [False, True]
