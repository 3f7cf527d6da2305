"""Each tensor that passes is made wrong in turn, in evidence without processes: that tensor is the one named.

Engines that are wrong at known places, in processes, are in tests/campaign/test_localising.py.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable

import pytest
import torch
from msgspec import structs

from pipeconform.adapter import Feature
from pipeconform.case import blocks
from pipeconform.case.case import Case, Eval, Model, Optimize, Sgd, Stage, Train, World, Zero
from pipeconform.errors import HarnessError
from pipeconform.judge.evidence import Evidence
from pipeconform.judge.localise.localisation import locate, locate_among
from pipeconform.observe.array import Array
from pipeconform.observe.localisation import Localisation
from pipeconform.observe.observation import Flow, Reference, StepShown, Structure
from pipeconform.oracle.full_model import Bounds, reference
from tests.facts import tells
from tests.judge.honest import changed, honest, plain_case, shown_step, with_value

S = 3
FIRST, LAST = 0, 3
"""The training steps; between them the optimizer's."""
MICROBATCHES = {FIRST: 3, LAST: 2}
CASE = plain_case(
    Train(batch_size=6, num_microbatches=3),
    Optimize(),
    Zero(),
    Train(batch_size=4, num_microbatches=2),
    model=Model(
        width=3,
        stages=(Stage(blocks=(blocks.Linear(), blocks.BatchNorm())),) * S,
        carried=("stream",),
        container="tuple",
    ),
    world=World(size=S, pipeline_ranks=(0, 1, 2)),
    optimizer=Sgd(lr=0.125),
)
CALLS = [(step, s, k) for step, m in MICROBATCHES.items() for s in range(S) for k in range(m)]


def _right(case: Case, made: Evidence, *, copied: bool) -> Evidence:
    @functools.cache
    def expected(bounds: Bounds) -> Reference:
        return reference(case, scale=made.capabilities.scale, bounds=bounds, copied=copied, flow=True)

    return dataclasses.replace(made, expected=expected("none"), bounded=expected)


@functools.cache
def right(case: Case = CASE) -> tuple[Evidence, Evidence]:
    """Honest evidence in which stages reported the gradients that passed, and the same with copied microbatches."""
    made, copied = (_right(case, honest(case), copied=one) for one in (False, True))
    for rank in range(len(made.shown)):
        for step in range(len(case.program)):
            shown = shown_step(made.shown[rank], step)
            flow = tuple(_gradients_of(made, step, shown))
            made, copied = (changed(one, rank=rank, step=step, flow=flow) for one in (made, copied))
    return made, copied


def _gradients_of(made: Evidence, step: int, shown: StepShown) -> list[Flow]:
    ran: dict[int, int] = {}
    found = []
    for call in shown.forwards:
        k = ran[call.stage] = ran.get(call.stage, -1) + 1
        found += [
            structs.replace(one, call=call.call, bound=None)
            for one in made.expected.steps[step].flow
            if one.kind.endswith("gradient") and (one.stage, one.call) == (call.stage, k)
        ]
    return found


def located(change: Callable[[Evidence], Evidence], case: Case = CASE) -> Localisation:
    return locate(*map(change, right(case)))


def place(found: Localisation) -> tuple[object, ...]:
    assert found.first is not None
    one = found.first
    return one.direction, one.side, one.step, one.stage, one.microbatch


def doubled(value: Array) -> Array:
    return Array.of(value.tensor() * 2 + 1)


def last_bit(value: Array) -> Array:
    tensor = value.tensor().clone()
    tensor.view(-1)[0] = torch.nextafter(tensor.view(-1)[0], torch.tensor(torch.inf, dtype=tensor.dtype))
    return Array.of(tensor)


def _leaf(structure: Structure, position: int, change: Callable[[Array], Array]) -> Structure:
    if structure.array is not None:
        return structs.replace(structure, array=change(structure.array))
    items = [_leaf(one, 0, change) if index == position else one for index, one in enumerate(structure.items)]
    return structs.replace(structure, items=tuple(items))


def forward(step: int, s: int, k: int, side: str, position: int = 0, change=doubled):
    """Change what a forward received, or gave."""

    def apply(made: Evidence) -> Evidence:
        calls = list(shown_step(made.shown[s], step).forwards)
        one = calls[k]
        if side == "input":
            inputs = list(one.inputs)
            inputs[position] = _leaf(inputs[position], 0, change)
            calls[k] = structs.replace(one, inputs=tuple(inputs))
        else:
            calls[k] = structs.replace(one, output=_leaf(one.output, position, change))
        return changed(made, rank=s, step=step, forwards=tuple(calls))

    return apply


def loss(step: int, k: int, change=doubled):
    def apply(made: Evidence) -> Evidence:
        losses = list(shown_step(made.shown[S - 1], step).losses or ())
        losses[k] = change(losses[k])
        return changed(made, rank=S - 1, step=step, losses=tuple(losses))

    return apply


def gradients(step: int, change=doubled, *, which=lambda kind, s, k, position: True):
    """Change gradients that passed between stages, and with them none that is left at the end."""

    def apply(made: Evidence) -> Evidence:
        for rank in range(S):
            shown = shown_step(made.shown[rank], step)
            number = {
                call.call: k for k, call in enumerate(one for one in shown.forwards if one.stage == rank)
            }
            flow = tuple(
                structs.replace(one, value=change(one.value))
                if which(one.kind, one.stage, number[one.call], one.position)
                else one
                for one in shown.flow or ()
            )
            made = changed(made, rank=rank, step=step, flow=flow)
        return made

    return apply


def state(what: str, step: int, s: int, change=doubled):
    """Change the first gradient, buffer or parameter of a stage."""

    def apply(made: Evidence) -> Evidence:
        own = getattr(shown_step(made.shown[s], step), what)[s]
        name = next(name for name, value in own.items() if value is not None and value.size > 1)
        return with_value(made, what, s, name, change(own[name]), rank=s, step=step)

    return apply


def both(*changes):
    return lambda made: functools.reduce(lambda so_far, change: change(so_far), changes, made)


def test_nothing_is_wrong_in_right_evidence():
    found = located(lambda made: made)
    m = sum(MICROBATCHES.values())

    assert (found.first, found.wrong, found.lanes, found.bounded) == (None, 0, (), True)
    # inputs and outputs of all stages, what is returned, losses, and the weights of each stage in each step
    assert found.compared == 2 * S * m + m + m + 2 * S


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_wrong_value_that_a_stage_receives_or_gives_is_named(side):
    for step, s, k in CALLS:
        for position in range(2 if (s if side == "input" else s < S - 1) else 1):
            found = located(forward(step, s, k, side, position))

            assert place(found) == ("forward value", side, step, s, k)
            assert found.first.tensor == f"{side} {position}"
            assert (found.first.rank, found.wrong) == (s, 1)


def test_a_wrong_loss_is_named():
    for step, m in MICROBATCHES.items():
        for k in range(m):
            found = located(loss(step, k))

            assert place(found) == ("loss", "", step, S - 1, k)
            assert (found.first.rank, found.first.tensor, found.wrong) == (S - 1, "loss", 1)


def test_a_wrong_gradient_between_stages_is_named_where_weights_are_wrong():
    for kind in ("output gradient", "input gradient"):
        for step, s, k in CALLS:
            places = {
                flow.position
                for flow in right()[0].expected.steps[step].flow
                if (flow.kind, flow.stage, flow.call) == (kind, s, k)
            }
            for position in places:
                one = gradients(step, which=lambda *here, wanted=(kind, s, k, position): here == wanted)
                found = located(both(one, state("gradients", step, 0)))

                assert place(found) == (kind, "", step, s, k)
                assert found.first.tensor == f"gradient of {kind.removesuffix(' gradient')} {position}"
                assert found.first.rank == s
                assert place(located(both(one, state("gradients", LAST, 0)))) == (
                    (kind, "", step, s, k) if step == LAST else ("weight gradient", "", LAST, 0, None)
                )
                assert located(one).first is None


def test_a_gradient_that_did_not_pass_is_named_without_a_likeness():
    def lost(made: Evidence) -> Evidence:
        flow = [
            one
            for one in shown_step(made.shown[1], FIRST).flow or ()
            if (one.kind, one.position) != ("output gradient", 0)
        ]
        return changed(made, rank=1, step=FIRST, flow=tuple(flow))

    found = located(both(lost, state("gradients", FIRST, 0)))

    assert place(found) == ("output gradient", "", FIRST, 1, 0)
    assert found.first.likeness == "none passed"


def test_a_gradient_that_passed_in_two_parts_is_their_sum():
    def parts(made: Evidence) -> Evidence:
        flow = [
            structs.replace(one, value=Array.of(one.value.tensor() / 2))
            for one in shown_step(made.shown[1], FIRST).flow or ()
            for _ in range(2)
        ]
        return changed(made, rank=1, step=FIRST, flow=tuple(flow))

    assert place(located(both(parts, state("gradients", FIRST, 0)))) == (
        "weight gradient",
        "",
        FIRST,
        0,
        None,
    )


def test_wrong_weight_gradients_buffers_and_parameters_are_named():
    for s in range(S):
        for step in MICROBATCHES:
            assert place(located(state("gradients", step, s))) == ("weight gradient", "", step, s, None)
            assert place(located(state("buffers", step, s))) == ("buffer", "", step, s, None)
        assert place(located(state("parameters", 1, s))) == ("parameter", "", 1, s, None)


def test_of_several_the_first_in_the_flow_is_named():
    order = [
        forward(FIRST, 0, 0, "output"),
        forward(FIRST, 1, 0, "input"),
        loss(FIRST, 0),
        forward(FIRST, 0, 1, "output"),
        state("buffers", FIRST, 0),
        state("gradients", FIRST, 2),
        state("gradients", FIRST, 1),
        forward(LAST, 0, 0, "input"),
    ]
    for first, then in itertools.pairwise(order):
        assert place(located(both(then, first))) == place(located(first))


def test_what_another_microbatch_has_is_recognised():
    other = right()[0].expected.steps[FIRST].inputs[1][2][0].leaves()[0]
    found = located(forward(FIRST, 1, 0, "input", change=lambda _: other))

    assert found.first.likeness == "it is microbatch 2's"
    assert located(loss(FIRST, 1, lambda _: right()[0].expected.steps[FIRST].losses[0])).first.likeness == (
        "it is microbatch 0's"
    )


def test_a_gradient_that_another_microbatch_has_is_recognised():
    here = ("output gradient", 1, 1, 0)
    other = next(
        one.value
        for one in right()[0].expected.steps[FIRST].flow
        if (one.kind, one.stage, one.call, one.position) == ("output gradient", 1, 2, 0)
    )
    exchanged = gradients(FIRST, change=lambda _: other, which=lambda *place: place == here)
    found = located(both(exchanged, state("gradients", FIRST, 0)))

    assert place(found) == ("output gradient", "", FIRST, 1, 1)
    assert found.first.likeness == "it is microbatch 2's"


def test_a_microbatch_with_fewer_tensors_is_none_that_another_could_be():
    def fewer(made: Evidence) -> Evidence:
        steps = list(made.expected.steps)
        inputs = list(map(list, steps[FIRST].inputs))
        inputs[1][2] = inputs[1][2][:1]
        steps[FIRST] = structs.replace(steps[FIRST], inputs=tuple(map(tuple, inputs)))
        return dataclasses.replace(made, expected=structs.replace(made.expected, steps=tuple(steps)))

    found = located(both(fewer, forward(FIRST, 1, 0, "input", 1)))

    assert place(found) == ("forward value", "input", FIRST, 1, 0)
    assert (found.first.tensor, found.first.likeness) == ("input 1", "")


def test_how_a_result_differs_is_told_without_repeating_what_it_is():
    found = located(state("gradients", FIRST, 1))

    assert tells(found.first.tensor, "gradient", "stage 1")
    assert tells(found.first.text, "expected", "actual")
    assert not tells(found.first.text, "stage 1")


def test_a_wrong_loss_of_a_whole_batch_is_named_with_both_numbers():
    step = Train(batch_size=2, num_microbatches=1)
    case = structs.replace(CASE, program=(step,), optimizer=None)
    (one,) = right(case)[0].expected.steps[0].losses

    def apply(made: Evidence) -> Evidence:
        features = made.capabilities.features - {Feature.MICROBATCH_LOSSES}
        claims = dataclasses.replace(made.capabilities, features=features)
        made = dataclasses.replace(made, capabilities=claims)
        return changed(made, rank=S - 1, step=0, losses=None, loss=doubled(one))

    found = located(apply, case)

    assert place(found) == ("loss", "", 0, S - 1, None)
    assert all(tells(found.first.text, repr(float(loss.tensor()))) for loss in (one, doubled(one)))


# ------------------------------------------------------------------------------------- within its bound


def test_other_bits_within_the_bound_are_named_for_forwards_before_the_first_update_only():
    found = located(forward(FIRST, 1, 0, "input", change=last_bit))

    assert place(found) == ("forward value", "input", FIRST, 1, 0)
    assert found.wrong == 1
    assert located(forward(LAST, 1, 0, "input", change=last_bit)).first is None
    assert located(loss(FIRST, 0, last_bit)).first is None


@pytest.mark.parametrize(("fused", "is_named"), [(False, True), (True, False)])
def test_a_training_step_is_an_update_where_it_steps_the_optimizer_too(fused, is_named):
    step = Train(batch_size=2, num_microbatches=1)
    case = structs.replace(CASE, program=(step, Zero(), step))

    def apply(made: Evidence) -> Evidence:
        claims = dataclasses.replace(made.capabilities, fused_optimizer=fused)
        return forward(2, 1, 0, "input", change=last_bit)(dataclasses.replace(made, capabilities=claims))

    assert (located(apply, case).first is not None) is is_named


def test_what_exceeds_its_bound_comes_before_what_has_other_bits():
    found = located(both(forward(FIRST, 0, 0, "output", change=last_bit), loss(LAST, 1)))

    assert place(found) == ("loss", "", LAST, S - 1, 1)
    assert found.wrong == 1


def test_without_bounds_only_enormous_differences_count_and_it_is_said():
    def unbounded(made: Evidence) -> Evidence:
        def refuse(bounds: Bounds) -> Reference:
            raise HarnessError(f"no rule: {bounds}")

        return dataclasses.replace(made, bounded=refuse)

    assert place(located(both(unbounded, loss(FIRST, 0)))) == ("loss", "", FIRST, S - 1, 0)
    assert not located(both(unbounded, loss(FIRST, 0))).bounded
    assert located(both(unbounded, loss(FIRST, 0, last_bit))).first is None


# ------------------------------------------------------------------------------ scales between stages


def scaled_by(step: int, factor: float, *, which=lambda *_: True):
    return gradients(step, lambda value: Array.of(value.tensor() * factor), which=which)


def test_an_engine_may_scale_what_passes_as_long_as_the_end_is_right():
    """The last stage's weights are right, so its output's gradient has the engine's scale, and all others have it."""
    wrong_end = state("gradients", FIRST, 0)

    assert place(located(both(scaled_by(FIRST, 4), wrong_end))) == ("weight gradient", "", FIRST, 0, None)
    found = located(
        both(
            scaled_by(FIRST, 4),
            scaled_by(FIRST, 2, which=lambda *at: at[:3] == ("output gradient", 0, 1)),
            wrong_end,
        )
    )
    assert place(found) == ("output gradient", "", FIRST, 0, 1)
    assert tells(found.first.likeness, "2 times the reference's")


def test_a_scale_that_the_last_stage_keeps_is_wrong():
    found = located(both(scaled_by(FIRST, 4), state("gradients", FIRST, S - 1)))

    assert place(found) == ("output gradient", "", FIRST, S - 1, 0)
    assert tells(found.first.likeness, "4 times the reference's")


def test_a_scale_that_microbatches_do_not_share_is_none():
    one = scaled_by(FIRST, 4, which=lambda kind, s, k, position: k == 1)

    assert place(located(both(one, state("gradients", FIRST, 0)))) == ("output gradient", "", FIRST, S - 1, 1)


@pytest.mark.parametrize(
    ("earlier", "later", "known"),
    [
        (4.0, 4.0, True),  # the same
        (3.0, 2.0, True),  # the number of microbatches
        (4.0, 2.0, False),
        (1.0, 2 / 3, False),  # 1 is no scale
    ],
)
def test_a_scale_of_an_earlier_step_is_known_in_later_ones(earlier, later, known):
    found = located(both(scaled_by(FIRST, earlier), scaled_by(LAST, later), state("gradients", LAST, S - 1)))

    assert place(found) == (
        ("weight gradient", "", LAST, S - 1, None) if known else ("output gradient", "", LAST, S - 1, 0)
    )


# ------------------------------------------------------------------------------------------------ lanes


def test_lanes_mark_what_is_wrong_for_each_microbatch():
    found = located(both(forward(FIRST, 1, 1, "input"), state("gradients", FIRST, 0)))
    lanes = {(lane.direction, lane.stage, lane.side): lane.marks for lane in found.lanes}

    assert lanes["forward value", 0, "output"] == "==="
    assert lanes["forward value", 1, "input"] == "=x="
    assert lanes["loss", S - 1, ""] == "==="
    assert lanes["output gradient", 1, ""] == "==="
    assert lanes["weight gradient", 0, ""] == "x"
    assert lanes["weight gradient", 2, ""] == "="
    assert [lane.direction for lane in found.lanes][:2] == ["forward value"] * 2
    assert found.lanes[-1].direction == "weight gradient"
    assert found.wrong == 2


def test_only_the_step_of_the_first_has_lanes():
    found = located(both(loss(LAST, 0), loss(LAST, 1)))

    assert all(len(lane.marks) in (1, MICROBATCHES[LAST]) for lane in found.lanes)
    assert next(lane.marks for lane in found.lanes if lane.direction == "loss") == "xx"


# --------------------------------------------------------------------------------- results and replicas


def test_a_returned_output_is_named_as_the_result():
    def apply(made: Evidence) -> Evidence:
        output = shown_step(made.shown[S - 1], FIRST).output
        assert output is not None
        return changed(made, rank=S - 1, step=FIRST, output=_leaf(output, 0, doubled))

    found = located(apply)

    assert place(found)[:4] == ("forward value", "result", FIRST, S - 1)
    assert found.first.tensor == "returned output"


def test_evaluations_are_compared_too():
    evaluated = structs.replace(CASE, program=(Eval(batch_size=6, num_microbatches=3),), optimizer=None)
    found = located(forward(0, 1, 2, "input"), evaluated)

    assert place(found) == ("forward value", "input", 0, 1, 2)
    assert located(lambda made: made, evaluated).compared == 2 * S * 3 + 3 + 3


def test_the_replica_with_the_first_wrong_tensor_is_the_one_that_is_told():
    made = right()
    late, early = (tuple(map(change, made)) for change in (loss(LAST, 0), forward(FIRST, 1, 1, "input")))
    found = locate_among([made, late, early])

    assert place(found) == ("forward value", "input", FIRST, 1, 1)
    assert found.first.replica == 2
    assert (found.wrong, found.bounded) == (2, True)
    assert found.compared == sum(locate(*one).compared for one in (made, late, early))
    assert locate_among([made, made]).first is None
