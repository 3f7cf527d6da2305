"""The judgements of chapters TRN and SPL on runs with one fault: what is found, and where."""

import dataclasses

import msgspec
import pytest
import torch

from pipeconform.adapter import Capabilities, Feature, ScheduleClaim
from pipeconform.case import blocks
from pipeconform.case.case import LossSpec, Train
from pipeconform.judge.evidence import Evidence
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Reference, Structure
from pipeconform.oracle.full_model import reference
from tests.case.examples import EVERYTHING, with_model
from tests.facts import tells
from tests.judge.honest import (
    CASES,
    HALVES,
    TWO_DIRECTIONS,
    changed,
    expecting,
    found,
    honest,
    honest_example,
    masks_for,
    of_blocks,
    plain_case,
    shown_step,
    told,
    value_of,
    with_value,
)

WEIGHT, BIAS = "blocks.0.weight", "blocks.0.bias"
LAST = 1
"""The rank that owns the last stage."""

ONE_NUMBER = dataclasses.replace(EVERYTHING, features=EVERYTHING.features - {Feature.MICROBATCH_LOSSES})
"""An engine that returns one loss for the whole batch."""


def _losses(made: Evidence, step: int = 0) -> list[Array]:
    return list(made.expected.steps[step].losses)


def _times(array: Array, factor: float) -> Array:
    return Array.of(array.tensor() * factor)


def _scaled(made: Evidence, stage: int, factor: float, *, rank: int, step: int = 0) -> Evidence:
    """All gradients of one stage times a factor."""
    gradients = dict(made.shown[rank].steps[step].gradients)
    gradients[stage] = {n: None if g is None else _times(g, factor) for n, g in gradients[stage].items()}
    return changed(made, rank=rank, step=step, gradients=gradients)


# ------------------------------------------------------------------------------------------------- losses


def test_a_wrong_loss_is_found_with_its_microbatch():
    made = honest(plain_case())
    first, second, third = _losses(made)

    wrong = changed(made, rank=LAST, losses=(first, _times(second, 1.5), third))

    assert told("TRN-2", wrong) == [("loss value", 0, LAST, None, 1)]


def test_a_loss_may_round_otherwise_within_the_bound():
    made = honest(plain_case())
    first, *others = _losses(made)

    near = changed(made, rank=LAST, losses=(_times(first, 1 + 2**-52), *others))
    far = changed(made, rank=LAST, losses=(_times(first, 1 + 2**-40), *others))

    assert told("TRN-2", near) == []
    assert told("TRN-2", far) == [("loss value", 0, LAST, None, 0)]


def test_losses_in_another_order_are_found_as_such():
    made = honest(plain_case())

    (finding,) = found("TRN-2", changed(made, rank=LAST, losses=tuple(reversed(_losses(made)))))

    assert (finding.kind, finding.microbatch) == ("loss order", 0)
    assert tells(finding.message, "microbatch 2's", "in the place of", "microbatch 0's")


@pytest.mark.parametrize("count", [0, 2, 4])
def test_too_few_or_too_many_losses_are_found(count):
    made = honest(plain_case())

    (finding,) = found("TRN-2", changed(made, rank=LAST, losses=tuple((_losses(made) * 2)[:count])))

    assert (finding.kind, finding.rank) == ("number of losses", LAST)
    assert finding.message == f"{count} losses for 3 microbatches"


def test_no_losses_at_all_are_found():
    made = changed(honest(plain_case()), rank=LAST, losses=None)

    assert [f.message for f in found("TRN-2", made)] == ["no losses for 3 microbatches"]


@pytest.mark.parametrize("losses", [None, ()])
def test_an_engine_of_one_loss_must_return_it(losses):
    made = changed(honest(plain_case(), capabilities=ONE_NUMBER), rank=LAST, losses=losses)

    assert told("TRN-2", made) == [("no loss", 0, LAST, None, None)]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_one_loss_is_the_mean_or_the_sum(reduction):
    case = plain_case(loss=LossSpec(reduction=reduction))
    made = honest(case, capabilities=ONE_NUMBER)
    losses = torch.stack([loss.tensor() for loss in _losses(made)])
    right, wrong = losses.mean(), losses.sum()
    right, wrong = (right, wrong) if reduction == "mean" else (wrong, right)

    assert told("TRN-2", changed(made, rank=LAST, losses=None, loss=Array.of(right))) == []
    assert told("TRN-2", changed(made, rank=LAST, losses=None, loss=Array.of(right * (1 + 1e-15)))) == []
    for bad in (wrong, right * (1 + 1e-9), right * torch.nan):
        made = changed(made, rank=LAST, losses=None, loss=Array.of(bad))
        assert told("TRN-2", made) == [("total loss", 0, LAST, None, None)]


def test_the_loss_of_a_training_that_diverges_is_not_judged():
    made = honest(plain_case(), capabilities=ONE_NUMBER)
    made = changed(made, rank=LAST, losses=None, loss=Array.of(_losses(made)[0].tensor() * torch.inf))
    gradients = {0: {"weight": Array.of(torch.full((1,), 1e160, dtype=torch.float64))}}

    assert told("TRN-2", made) == [("total loss", 0, LAST, None, None)]
    assert told("TRN-2", expecting(made, gradients=gradients)) == []


@pytest.mark.parametrize(("steps", "is_told"), [(3, False), (16, True)])
def test_one_loss_is_a_rounding_for_each_addition_off_where_losses_are_exact(steps, is_told):
    """Three losses are added and divided by three: that is five units of the last digit, of the mean."""
    made = honest(plain_case(), capabilities=ONE_NUMBER)
    step = made.expected.steps[0]
    exact = tuple(Array.of(torch.zeros_like(one.tensor())) for one in step.losses)
    known = Reference(steps=(msgspec.structs.replace(step, loss_bounds=exact),))
    made = dataclasses.replace(made, bounded=lambda bounds: known)
    mean = torch.stack([one.tensor() for one in step.losses]).mean()

    for sign in (-1, 1):
        near = Array.of(mean * (1 + sign * steps * torch.finfo(mean.dtype).eps))
        assert bool(told("TRN-2", changed(made, rank=LAST, losses=None, loss=near))) is is_told


@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf")])
def test_one_loss_may_be_no_number_where_the_reference_is_none(special):
    made = honest(plain_case(), capabilities=ONE_NUMBER)
    first, *others = _losses(made)
    made = expecting(made, losses=(Array.of(torch.full_like(first.tensor(), special)), *others))

    def answered(loss: float) -> list[str]:
        value = Array.of(torch.tensor(loss, dtype=first.tensor().dtype))
        return [one.kind for one in found("TRN-2", changed(made, rank=LAST, losses=None, loss=value))]

    assert answered(special) == []
    assert answered(1.0) == ["total loss"]


def test_one_loss_is_not_refused_where_nothing_is_known_of_its_rounding():
    made = honest(plain_case(), capabilities=ONE_NUMBER)
    step = made.expected.steps[0]
    unbounded = tuple(Array.of(torch.full_like(one.tensor(), torch.inf)) for one in step.losses)
    known = Reference(steps=(msgspec.structs.replace(step, loss_bounds=unbounded),))
    made = dataclasses.replace(made, bounded=lambda bounds: known)
    mean = torch.stack([one.tensor() for one in step.losses]).mean()

    assert told("TRN-2", changed(made, rank=LAST, losses=None, loss=Array.of(mean * 1.5))) == []


@pytest.mark.parametrize("name", ["losses", "loss"])
def test_losses_on_another_rank_are_found_there(name):
    made = honest(plain_case())
    value = {"losses": tuple(_losses(made)), "loss": _losses(made)[0]}[name]

    assert told("TRN-2", changed(made, rank=0, **{name: value})) == [
        ("loss on the wrong rank", 0, 0, None, None)
    ]


def test_the_losses_of_a_part_are_those_of_its_microbatches():
    made = honest(plain_case(), capabilities=TWO_DIRECTIONS, shares=HALVES)
    first, second, third = _losses(made)

    assert told("TRN-2", changed(made, rank=0, losses=(third, first))) == [("loss order", 0, 0, None, 0)]
    assert told("TRN-2", changed(made, rank=0, losses=(first, second))) == [("loss order", 0, 0, None, 2)]
    assert told("TRN-2", changed(made, rank=0, losses=(first,))) == [("number of losses", 0, 0, None, None)]


# ---------------------------------------------------------------------------------------------- gradients


def test_a_wrong_gradient_is_found_with_step_stage_and_name():
    made = honest_example("plain")
    wrong = value_of(made, "gradients", 1, BIAS, step=2)
    wrong[1] *= -1

    (finding,) = found("TRN-1", with_value(made, "gradients", 1, BIAS, Array.of(wrong), rank=1, step=2))

    assert (finding.kind, finding.step, finding.rank, finding.stage) == ("gradient value", 2, 1, 1)
    assert tells(finding.message, "gradient", "blocks.0.bias", "stage 1")
    assert finding.mismatch.index == (1,)
    assert finding.mismatch.differing == 1
    assert "times the reference's" not in finding.message


def test_a_missing_gradient_is_found():
    made = with_value(honest(plain_case()), "gradients", 0, WEIGHT, None, rank=0)

    assert told("TRN-1", made) == [("gradient missing", 0, 0, 0, None)]


def test_a_parameter_without_an_entry_is_a_missing_gradient():
    made = honest(plain_case())

    assert told("TRN-1", changed(made, rank=0, gradients={0: {}})) == [("gradient missing", 0, 0, 0, None)]
    assert told("TRN-1", changed(made, rank=0, gradients={})) == [("gradient missing", 0, 0, 0, None)]


@pytest.mark.parametrize(
    ("requirement", "name", "parameter"),
    [("TRN-5", "frozen", "blocks.1.weight"), ("TRN-6", "unused", "blocks.1.weight")],
)
def test_a_gradient_where_none_belongs_is_found(requirement, name, parameter):
    made = honest_example(name)
    assert made.expected.steps[0].gradients[0][parameter] is None
    like = made.expected.steps[0].parameters[0][parameter]

    wrong = with_value(made, "gradients", 0, parameter, _times(like, 0), rank=0)

    assert told(requirement, wrong) == [("gradient unexpected", 0, 0, 0, None)]


def test_a_parameter_that_nobody_knows_is_found():
    made = honest(plain_case())

    wrong = with_value(made, "gradients", 0, "engine.0.weight", _losses(made)[0], rank=0)

    assert told("TRN-1", wrong) == [("gradient unexpected", 0, 0, 0, None)]


def test_another_shape_or_dtype_is_found_however_near_the_values_are():
    made = honest(plain_case())
    right = value_of(made, "gradients", 0, WEIGHT)

    for other, kind in ((right.flatten(), "gradient shape"), (right.float(), "gradient dtype")):
        wrong = with_value(made, "gradients", 0, WEIGHT, Array.of(other), rank=0)
        assert told("TRN-1", wrong) == [(kind, 0, 0, 0, None)]


def test_a_gradient_that_is_not_finite_is_found():
    made = honest(plain_case())

    for fill in (torch.nan, torch.inf):
        value = value_of(made, "gradients", 0, WEIGHT)
        value[2, 2] = fill
        wrong = with_value(made, "gradients", 0, WEIGHT, Array.of(value), rank=0)
        assert told("TRN-1", wrong) == [("gradient value", 0, 0, 0, None)]


def test_gradients_may_round_otherwise_within_the_bound():
    made = honest(plain_case())
    right = value_of(made, "gradients", 1, WEIGHT)

    near = with_value(made, "gradients", 1, WEIGHT, Array.of(right * (1 + 2**-52)), rank=1)
    far = with_value(made, "gradients", 1, WEIGHT, Array.of(right * (1 + 2**-36)), rank=1)

    assert told("TRN-1", near) == []
    assert told("TRN-1", far) == [("gradient value", 0, 1, 1, None)]


def test_in_haste_a_small_difference_is_still_held_against_its_bound():
    made = dataclasses.replace(honest(plain_case()), thorough=False)
    right = value_of(made, "gradients", 1, WEIGHT)

    near = with_value(made, "gradients", 1, WEIGHT, Array.of(right * (1 + 2**-52)), rank=1)

    assert told("TRN-1", near) == []
    assert told("TRN-1", _scaled(made, 1, 2.0, rank=1)) == [("gradient value", 0, 1, 1, None)]


def test_a_gradient_of_minus_zero_is_one_of_zero():
    made = honest(plain_case())
    zero, right = torch.zeros(3, dtype=torch.float64), made.expected.steps[0].gradients
    expected = expecting(made, gradients={**right, 0: {**right[0], BIAS: Array.of(zero)}})
    raw = Array("float64", (3,), (-zero).numpy().tobytes())

    for negative in (Array.of(-zero), raw):
        assert told("TRN-1", with_value(expected, "gradients", 0, BIAS, negative, rank=0)) == []


def test_each_owner_of_a_stage_must_have_its_whole_gradient():
    made = honest(plain_case(), capabilities=TWO_DIRECTIONS, shares=HALVES)

    assert told("TRN-1", _scaled(made, 0, 0.5, rank=1)) == [("gradient value", 0, 1, 0, None)]


def test_a_split_backward_is_judged_by_its_gradients():
    made = with_value(honest(plain_case()), "gradients", 0, WEIGHT, None, rank=0)

    assert told("SPL-1", made) == [("gradient missing", 0, 0, 0, None)]


# -------------------------------------------------------------------------------------------------- scale


@pytest.mark.parametrize(("factor", "words"), [(3.0, "3 times"), (0.25, "0.25 times"), (-1.0, "-1 times")])
def test_one_factor_for_a_whole_stage_is_said(factor, words):
    made = _scaled(honest(plain_case()), 0, factor, rank=0)

    (scale,), (gradient,) = found("TRN-3", made), found("TRN-1", made)

    assert (scale.kind, scale.stage) == ("scale", 0)
    assert tells(scale.message, "stage 0's", "gradients", words, "the reference's", "m = 3", "mean-reduced")
    assert tells(gradient.message.splitlines()[-1], "stage 0's", words, "the reference's")


def test_a_difference_without_one_factor_is_not_a_matter_of_scale():
    made = honest(plain_case())
    shifted = Array.of(value_of(made, "gradients", 0, WEIGHT) + 1)

    wrong = with_value(made, "gradients", 0, WEIGHT, shifted, rank=0)

    assert told("TRN-3", wrong) == []
    assert told("TRN-1", wrong) == [("gradient value", 0, 0, 0, None)]


def test_a_loss_that_is_not_divided_is_a_scale_of_m():
    case = plain_case()
    undivided = reference(
        case, scale=dataclasses.replace(EVERYTHING.scale, at="none", input_gradients_scaled=False)
    )
    made = honest(case)

    for rank in (0, 1):
        made = changed(made, rank=rank, gradients={rank: undivided.steps[0].gradients[rank]})

    assert told("TRN-3", made) == [("scale", 0, 0, 0, None), ("scale", 0, 1, 1, None)]
    assert all("3 times" in finding.message for finding in found("TRN-3", made))


# ------------------------------------------------------------------------------------------- accumulation


@pytest.mark.parametrize("kept", [0, 1 / 3], ids=["overwritten", "divided again"])
def test_a_step_that_does_not_keep_what_was_there_is_found(kept):
    made = honest(plain_case(*CASES["accumulation"].program[:2]))
    before = value_of(made, "gradients", 0, WEIGHT)
    second = value_of(made, "gradients", 0, WEIGHT, step=1) - before

    wrong = with_value(made, "gradients", 0, WEIGHT, Array.of(second + kept * before), rank=0, step=1)

    assert told("TRN-4", wrong) == [("gradient value", 1, 0, 0, None)]


@pytest.mark.parametrize(
    ("earlier", "own", "fate"),
    [
        (0, 1, "earlier steps lost"),
        (1, 0, "this step lost"),
        (1 / 3, 1, "earlier steps divided by m"),
        (3, 1, "earlier steps multiplied by m"),
        (2, 1, "earlier steps counted twice"),
    ],
)
def test_what_became_of_earlier_gradients_is_said_if_it_is_one_thing_for_the_whole_stage(earlier, own, fate):
    made = honest(plain_case(*CASES["accumulation"].program[:2]))
    wrong = made
    for name in (WEIGHT, BIAS):
        before = value_of(made, "gradients", 0, name)
        second = value_of(made, "gradients", 0, name, step=1) - before
        wrong = with_value(
            wrong, "gradients", 0, name, Array.of(own * second + earlier * before), rank=0, step=1
        )

    assert told("TRN-4", wrong) == [(f"gradient of {fate}", 1, 0, 0, None)]
    (finding,) = found("TRN-4", wrong)
    assert finding.message.endswith(f"all of stage 0's gradients fit one mistake: {fate}")


def test_a_first_step_has_no_earlier_gradients():
    made = honest(plain_case())

    (finding,) = found("TRN-1", _scaled(made, 0, 0.5, rank=0))

    assert finding.kind == "gradient value"


def test_accumulated_gradients_may_round_otherwise_within_the_bound():
    made = honest_example("accumulation")
    right = value_of(made, "gradients", 1, BIAS, step=3)

    near = with_value(made, "gradients", 1, BIAS, Array.of(right * (1 + 2**-52)), rank=1, step=3)

    assert told("TRN-4", near) == []


# ----------------------------------------------------------------------- input gradients, buffers, updates


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (None, "input gradient missing"),
        ((None,), "input gradient missing"),
        ("times m", "input gradient value"),
    ],
)
def test_a_wrong_gradient_of_an_input_is_found(wrong, kind):
    made = honest_example("inputs")
    right = made.expected.steps[0].input_gradients[0]
    shown = (_times(right, 3),) if wrong == "times m" else wrong

    assert told("TRN-7", changed(made, rank=0, input_gradients=shown)) == [(kind, 0, 0, 0, None)]


def test_an_input_that_asks_for_no_gradient_must_get_none():
    case = with_model(plain_case(), input_requires_grad=True, carried=("stream", "scale"), container="tuple")
    made = honest(case)
    main, stream, scale = made.expected.steps[0].input_gradients
    assert scale is None
    assert stream is not None

    wrong = changed(made, rank=0, input_gradients=(main, stream, main))

    assert told("TRN-7", made) == []
    assert told("TRN-7", wrong) == [("input gradient unexpected", 0, 0, 0, None)]


@pytest.mark.parametrize(
    ("name", "change"),
    [("num_batches_tracked", lambda right: right + 1), ("running_var", lambda right: right * (1 + 2**-23))],
)
def test_a_buffer_that_moved_otherwise_is_found(name, change):
    made, full = honest_example("buffers"), f"blocks.1.norm.{name}"
    wrong = Array.of(change(value_of(made, "buffers", 0, full)))

    assert told("TRN-9", with_value(made, "buffers", 0, full, wrong, rank=0)) == [
        ("buffer value", 0, 0, 0, None)
    ]


def test_a_missing_buffer_is_found():
    made = changed(honest_example("buffers"), rank=0, step=2, buffers={0: {}})

    assert told("TRN-9", made) == [("buffer missing", 2, 0, 0, None)]


def test_a_parameter_that_does_not_follow_the_optimizer_is_found_at_its_step():
    made = honest_example("optimizer")
    before = made.expected.steps[0].parameters[1][WEIGHT]

    wrong = with_value(made, "parameters", 1, WEIGHT, before, rank=1, step=1)

    assert told("TRN-14", wrong) == [("parameter value", 1, 1, 1, None)]


def test_training_alone_moves_no_parameter():
    made = honest_example("optimizer")
    moved = Array.of(value_of(made, "parameters", 0, BIAS) + 1)

    wrong = with_value(made, "parameters", 0, BIAS, moved, rank=0, step=0)

    assert told("TRN-14", wrong) == [("parameter value", 0, 0, 0, None)]


def test_an_optimizer_inside_the_training_step_is_judged_after_it():
    """With a fused optimizer the parameters have moved already when the training step ends."""
    made = honest_example("optimizer")
    fused = dataclasses.replace(made, capabilities=dataclasses.replace(EVERYTHING, fused_optimizer=True))
    after = made.expected.steps[1].parameters[0]

    moved = changed(fused, rank=0, step=0, parameters={0: after})

    assert told("TRN-14", moved) == []
    assert told("TRN-14", with_value(moved, "parameters", 0, BIAS, after[WEIGHT], rank=0, step=1)) == [
        ("parameter shape", 1, 0, 0, None)
    ]


# ------------------------------------------------------------------------------------- dropout and targets


def test_masks_that_were_not_used_are_found_by_the_values():
    case = CASES["dropout"]
    masks = masks_for(case)
    rotated = {(step, s, k): masks[step, s, (k + 1) % 3] for step, s, k in masks}

    made = dataclasses.replace(honest(case, masks=masks), expected=honest(case, masks=rotated).expected)

    assert ("loss value", 0, LAST, None, 0) in told("TRN-10", made)


def test_one_mask_for_all_microbatches_is_found_even_if_the_values_are_right():
    case = of_blocks(blocks.Linear(), blocks.Dropout(), program=(Train(batch_size=36, num_microbatches=3),))

    different = honest(case, masks=masks_for(case))
    alike = honest(case, masks=masks_for(case, alike=True))

    assert told("TRN-10", different) == []
    assert told("TRN-10", alike) == [("one dropout mask", 0, None, 0, None)]


def test_a_loss_without_its_argument_is_found():
    made = honest_example("targets")
    plain = reference(plain_case(), scale=EVERYTHING.scale).steps[0]

    wrong = changed(made, rank=LAST, losses=plain.losses, gradients={1: plain.gradients[1]})

    assert told("TRN-12", wrong) == [
        ("loss value", 0, LAST, None, 0),
        ("gradient value", 0, LAST, 1, None),
    ]


def test_no_bound_is_computed_where_all_bits_are_equal():
    made = honest(plain_case())

    def never(bounds):
        raise AssertionError(bounds)

    assert told("TRN-1", dataclasses.replace(made, bounded=never)) == []


def test_the_bound_is_asked_for_from_the_cheap_to_the_dear():
    made = honest(plain_case())
    asked = []

    def asking(bounds):
        asked.append(bounds)
        return made.bounded(bounds)

    wrong = dataclasses.replace(_scaled(made, 0, 2.0, rank=0), bounded=asking)

    assert told("TRN-1", wrong) == [("gradient value", 0, 0, 0, None)]
    assert asked == ["reassociated", "running"]


def test_a_claim_on_all_ranks_makes_all_of_them_hold_the_losses():
    everywhere = Capabilities(
        schedules=(ScheduleClaim(name="GPipe"),),
        features=frozenset({Feature.MICROBATCH_LOSSES}),
        loss_on="all",
    )
    made = honest(plain_case(), capabilities=everywhere)

    assert told("TRN-2", made) == [("number of losses", 0, 0, None, None)]
    assert told("TRN-2", changed(made, rank=0, losses=tuple(_losses(made)))) == []


def _wrong(made, what, *, step):
    """The same evidence with one wrong number in a step: of a parameter, a gradient, or of what the last stage gave."""
    if what in ("parameters", "gradients"):
        right = value_of(made, what, 0, WEIGHT, step=step)
        return with_value(made, what, 0, WEIGHT, Array.of(right + 1.0), rank=0, step=step)
    shown = shown_step(made.shown[LAST], step)
    if what == "loss":
        first, *others = shown.losses
        losses = (Array.of(first.tensor() + 1.0), *others)
        return changed(made, rank=LAST, step=step, losses=losses)
    (leaf,) = shown.output.leaves()
    return changed(made, rank=LAST, step=step, output=Structure.of(leaf.tensor() + 1.0))


@pytest.mark.parametrize(
    ("example", "what", "step"),
    [
        ("accumulation and evaluation", "output", 1),
        ("accumulation and evaluation", "loss", 2),
        ("accumulation and evaluation", "gradients", 2),
        ("accumulation and optimizer", "gradients", 1),
        ("accumulation and optimizer", "parameters", 2),
    ],
)
def test_each_part_of_two_things_at_once_is_judged(example, what, step):
    made = honest_example(example)
    kind = {"parameters": "parameter", "gradients": "gradient"}.get(what, what)

    assert told("TRN-22", made) == []
    assert {found[:2] for found in told("TRN-22", _wrong(made, what, step=step))} == {(f"{kind} value", step)}


def test_a_gradient_that_an_evaluation_changed_is_told_before_the_update_that_uses_it():
    made = honest_example("evaluation and optimizer")
    wrong = _wrong(_wrong(made, "gradients", step=1), "parameters", step=2)

    assert told("TRN-22", made) == []
    assert {found[:2] for found in told("TRN-22", wrong)} == {("evaluation changed a gradient", 1)}


def test_buffers_beside_another_thing_are_judged():
    made, name = honest_example("buffers and evaluation"), "blocks.1.norm.running_mean"
    moved = Array.of(value_of(made, "buffers", 0, name) + 1)

    assert told("TRN-22", made) == []
    assert told("TRN-22", with_value(made, "buffers", 0, name, moved, rank=0, step=1)) == [
        ("buffer value", 1, 0, 0, None)
    ]


def test_of_two_things_at_once_only_the_first_wrong_step_is_told():
    made = _wrong(honest_example("accumulation and optimizer"), "gradients", step=1)
    made = _wrong(made, "parameters", step=2)

    assert {found[1] for found in told("TRN-22", made)} == {1}
