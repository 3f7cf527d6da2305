"""The computations that a rank's events show."""

import dataclasses

import msgspec
import pytest
import torch

from pipeconform.errors import HarnessError
from pipeconform.judge.timeline import executed, recogniser
from pipeconform.observe.observation import Forward, Reference, Structure
from tests.judge.executions import evidence, value


def _run(text, *, m=2, p=2):
    """Rank 1 (stage 1) of two computes what `text` says."""
    return executed(evidence(*([""] * (p - 1)), text, m=m), 0)[-1]


def _words(one) -> str:
    return " ".join(map(str, one.actions))


@pytest.mark.parametrize(
    "text",
    ["1F0 1B0", "1F0 1I0 1W0", "1F0 1F1 1B0 1B1", "1F0 1F1 1I1 1I0 1W1 1W0", "1F0 1B0 1F1 1I1 1W1"],
)
def test_computations_come_out_as_they_went_in(text):
    assert _words(_run(text)) == text


def test_passages_of_one_kind_that_follow_one_another_are_one_computation():
    assert _words(_run("1F0 1I0 1W0 1W0 1W0")) == "1F0 1I0 1W0"
    assert _words(_run("1F0 1F1 1I0 1W0 1I1 1W0 1W1")) == "1F0 1F1 1I0 1W0 1I1 1W0 1W1"


def test_a_stage_without_an_input_part_runs_its_backward_as_a_whole():
    one = executed(evidence("0F0 0I0 0W0", m=1), 0)[0]

    assert _words(one) == "0F0 0B0"
    assert one.parts == {(0, 0): "W"}


def test_dry_runs_before_the_first_forward_do_not_count():
    one = _run("1F99 1f0 1F0 1F1 1B0 1B1")

    assert _words(one) == "1F0 1F1 1B0 1B1"
    assert one.probes == (1, 1)
    assert one.strangers == ()


def test_a_dry_run_on_old_values_that_computes_input_gradients_does_not_count():
    assert _words(_run("1F0 1I0 1F0 1F1 1B0 1B1")) == "1F0 1F1 1B0 1B1"


def test_of_forwards_that_nobody_uses_the_last_one_counts():
    """As in an evaluation: what came before it was a dry run."""
    one = _run("1f0 1f0 1f1")

    assert _words(one) == "1F0 1F1"
    assert one.probes == (1,)


def test_a_forward_that_is_used_counts_and_so_does_another_one_after_it():
    assert _words(_run("1F0 1B0 1f0 1F1 1B1")) == "1F0 1B0 1F0 1F1 1B1"


def test_an_unknown_forward_later_on_is_a_stranger():
    one = _run("1F0 1F99 1F1 1B0 1B1")

    assert one.strangers == ((1, 1),)
    assert _words(one) == "1F0 1F1 1B0 1B1"


def test_a_forward_that_runs_twice_counts_twice():
    assert _words(_run("1F0 1F0 1F1 1f1 1B0 1B1")) == "1F0 1F1 1F1 1B0 1B1"
    assert _words(_run("1F1 1F0 1B0 1F0 1B0 1B1")) == "1F1 1F0 1B0 1F0 1B0 1B1"


def test_a_forward_inside_a_backward_is_a_recomputation():
    one = _run("1f0 1f1 (1F0) 1B0 (1F1) 1B1")

    assert _words(one) == "1F0 1F1 1B0 1B1"
    assert [str(action) for action in one.recomputed] == ["1F0", "1F1"]
    assert one.parts == {(1, 0): "IW", (1, 1): "IW"}


def test_a_backward_without_a_forward_in_this_step_is_stale():
    assert _run("1B0 1F1 1B1").stale == (1,)


def test_without_events_there_is_no_verdict():
    made = evidence("", "1F0", m=1)
    one = made.shown[1]
    blind = msgspec.structs.replace(one, steps=(msgspec.structs.replace(one.steps[0], events=None),))

    with pytest.raises(HarnessError, match="rank 1 was asked for its timeline"):
        executed(evidence_with(made, blind), 0)


def evidence_with(made, one):
    return dataclasses.replace(made, shown=(made.shown[0], one))


def _forward(*numbers: float) -> Forward:
    inputs = tuple(Structure.of(torch.tensor([number])) for number in numbers)
    return Forward(stage=0, grad_enabled=True, inputs=inputs, output=inputs[0])


def test_a_microbatch_is_recognised_up_to_rounding():
    recognise = recogniser([[value(0, 0), value(0, 1)]])  # 5 and 15

    assert recognise(_forward(5.0)) == (0,)
    assert recognise(_forward(15.0000001)) == (1,)
    assert recognise(_forward(7.4)) == (0,)


@pytest.mark.parametrize("stranger", [0.0, 7.5, 9.9, 1e30, float("nan"), -5.0])
def test_what_is_near_no_microbatch_is_none(stranger):
    assert recogniser([[value(0, 0), value(0, 1)]])(_forward(stranger)) == ()


def test_other_shapes_and_stages_are_none():
    recognise = recogniser([[value(0, 0)]])

    assert recognise(_forward(5.0, 5.0)) == ()
    for stage in (1, 3):
        assert recognise(msgspec.structs.replace(_forward(5.0), stage=stage)) == ()


def test_equal_microbatches_are_taken_in_turn():
    made = evidence("", "1F0 1F0 1B0", m=2)
    same = made.expected.steps[0].inputs[1][0]
    step = msgspec.structs.replace(made.expected.steps[0], inputs=((same, same), (same, same)))
    recognise = recogniser(step.inputs)

    assert recognise(made.shown[1].steps[0].forwards[0]) == (0, 1)


def test_forwards_of_equal_microbatches_are_counted_for_each_in_turn():
    made = evidence("", "1F0 1B0 1F0 1B0 1F0 1B0", m=3)
    same = made.expected.steps[0].inputs[1][0]
    step = msgspec.structs.replace(made.expected.steps[0], inputs=((same,) * 3, (same,) * 3))
    made = dataclasses.replace(made, expected=Reference(steps=(step,)))

    assert _words(executed(made, 0)[1]) == "1F0 1B0 1F1 1B1 1F2 1B2"
