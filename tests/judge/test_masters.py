"""TRN-23: parameters of 16 bits are float32 copies, rounded."""

import torch

from pipeconform.case.case import Optimize
from pipeconform.judge.masters import masters_are_kept
from pipeconform.observe.array import Array
from tests.judge.honest import changed, found, honest_example, told

MADE = honest_example("masters")
UPDATES = [index for index, step in enumerate(MADE.case.program) if isinstance(step, Optimize)]


def _moved(*, step, by):
    """One element of the second stage's first parameter, moved by so many distances of bfloat16 numbers."""
    parameters = MADE.shown[1].steps[step].parameters
    name, array = next(iter(parameters[1].items()))
    value = array.tensor().clone()
    distance = torch.finfo(torch.bfloat16).eps * 2.0 ** float(value.view(-1)[0].abs().log2().floor())
    value.view(-1)[0] += by * distance
    return changed(MADE, rank=1, step=step, parameters={1: {**parameters[1], name: Array.of(value)}})


def test_copies_that_are_rounded_are_right():
    assert found("TRN-23", MADE) == []


def test_a_parameter_two_distances_off_is_named_with_the_update():
    (finding,) = masters_are_kept(_moved(step=UPDATES[1], by=2))

    assert (finding.step, finding.rank, finding.stage) == (UPDATES[1], 1, 1)
    assert "after 2 updates" in finding.message


def test_after_a_state_is_loaded_copies_start_from_it():
    before = MADE.shown[0].steps[UPDATES[1]].parameters
    wrong = changed(MADE, rank=0, step=UPDATES[2], parameters=before)

    assert ("parameter not rounded from a copy", UPDATES[2], 0, 0, None) in told("TRN-23", wrong)


def test_a_gradient_of_another_rank_changes_nothing_on_this_one():
    gradients = MADE.shown[0].steps[0].gradients
    doubled = {s: {n: Array.of(2 * a.tensor()) for n, a in own.items()} for s, own in gradients.items()}

    assert {one.rank for one in masters_are_kept(changed(MADE, rank=0, step=0, gradients=doubled))} == {0}
