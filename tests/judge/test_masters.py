"""TRN-23 and TRN-27: parameters of 16 bits are float32 copies, rounded, whose gradients may be clipped."""

import dataclasses
import re

import pytest
import torch
from msgspec import structs

from pipeconform.case.case import Clip, Optimize, Train
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


CLIPPED = honest_example("clipped copies")


def test_copies_whose_gradients_are_clipped_are_right():
    assert found("TRN-27", CLIPPED) == []


def test_copies_that_are_stepped_as_if_nothing_were_clipped_are_not():
    by = CLIPPED.case.optimizer
    case = structs.replace(CLIPPED.case, optimizer=structs.replace(by, clip=None))
    findings = [*masters_are_kept(dataclasses.replace(CLIPPED, case=case))]

    assert {one.kind for one in findings} == {"parameter not rounded from a copy"}
    assert {one.stage for one in findings} == {0, 1}


@pytest.mark.parametrize(("limit", "norm"), [(0.03, "two"), (0.0625, "maximum")])
def test_copies_that_are_clipped_by_another_limit_or_norm_are_not(limit, norm):
    by = structs.replace(CLIPPED.case.optimizer, clip=Clip(limit=limit, norm=norm))
    evidence = dataclasses.replace(CLIPPED, case=structs.replace(CLIPPED.case, optimizer=by))
    (first, *_) = masters_are_kept(evidence)

    assert re.search(r"the gradients that the rank showed times 0\.\d+, is", first.message)


def test_the_norm_is_that_of_the_gradients_of_all_ranks():
    gradients = CLIPPED.shown[1].steps[0].gradients
    smaller = {s: {n: Array.of(a.tensor() / 8) for n, a in own.items()} for s, own in gradients.items()}
    wrong = changed(CLIPPED, rank=1, step=0, gradients=smaller)

    assert {one.rank for one in masters_are_kept(wrong)} == {0, 1}


SCALED = honest_example("clipped scaled")


def test_a_scaled_loss_changes_nothing_in_what_is_clipped():
    assert found("TRN-27", SCALED) == []


def test_gradients_may_be_shown_without_the_scale_that_the_oracle_s_have():
    last = max(one.step for one in SCALED.runs(Train))
    before = max(one.step for one in SCALED.runs(Optimize) if one.step < last)
    scale = next(one.loss_scale for one in SCALED.expected.steps if one.step == before)
    made = SCALED
    for rank, shown in enumerate(SCALED.shown):
        gradients = shown.steps[last].gradients
        scaled = {
            s: {n: Array.of(a.tensor() / scale) for n, a in own.items()} for s, own in gradients.items()
        }
        made = changed(made, rank=rank, step=last, gradients=scaled)

    assert scale < 1
    assert list(masters_are_kept(made)) == []


def test_a_step_that_is_skipped_moves_nothing():
    first, second = (one.step for one in SCALED.runs(Optimize))
    moved = SCALED.shown[0].steps[second].parameters
    (finding, *_) = masters_are_kept(changed(SCALED, rank=0, step=first, parameters=moved))

    assert (finding.step, finding.rank) == (first, 0)
    assert "after 0 updates" in finding.message


def test_a_clipped_step_of_a_scaled_loss_is_held_to_the_copy():
    case = structs.replace(SCALED.case, optimizer=structs.replace(SCALED.case.optimizer, clip=None))

    assert list(masters_are_kept(dataclasses.replace(SCALED, case=case)))
