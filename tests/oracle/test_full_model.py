"""The oracle against gradients computed by hand and by plain autograd on the full batch."""

import msgspec
import pytest
import torch

from pipeconform.adapter import GradientScale
from pipeconform.bounds.numerics import compare
from pipeconform.bounds.running_error import RunningError
from pipeconform.case.blocks import BatchNorm, Decoder, Dropout, Head, Linear, Mlp, Norm
from pipeconform.case.build.data import IGNORED, loaded_state, loss_of, make_batch
from pipeconform.case.build.modules import build_model, build_stage
from pipeconform.case.case import (
    Adam,
    Clip,
    Eval,
    Freeze,
    Kwarg,
    Load,
    LossSpec,
    Model,
    Optimize,
    Passage,
    Sgd,
    Stage,
    Train,
    World,
    Zero,
)
from pipeconform.case.mistakes import Mistake
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Reference
from pipeconform.oracle.full_model import Question, answer, reference, where_bounds_are_computed
from tests.case.examples import small_case, with_model

AT_LOSS = GradientScale(at="loss")
AT_GRADIENT = GradientScale(at="gradient", input_gradients_scaled=False)
ONE = World(size=1, pipeline_ranks=(0,))


def _gradient(found: Reference, step: int, stage: int, name: str) -> torch.Tensor:
    array = found.steps[step].gradients[stage][name]
    assert array is not None
    return array.tensor()


def test_a_linear_map_has_the_gradient_computed_by_hand() -> None:
    """For L = mean((x W^T + b − t)²) the gradients are 2/N (y − t)^T x and 2/N Σ (y − t)."""
    case = small_case(
        model=Model(width=3, stages=(Stage(blocks=(Linear(),)),)),
        world=ONE,
        program=(Train(batch_size=4, num_microbatches=1),),
    )
    batch, stage = make_batch(case, 0), build_stage(case, 0)
    weight, bias = stage.blocks[0].weight.detach(), stage.blocks[0].bias.detach()
    x, t = batch.args[0], batch.target
    difference = 2 / t.numel() * (x @ weight.T + bias - t)

    found = reference(case, scale=AT_LOSS)

    torch.testing.assert_close(_gradient(found, 0, 0, "blocks.0.weight"), difference.T @ x)
    torch.testing.assert_close(_gradient(found, 0, 0, "blocks.0.bias"), difference.sum(0))


@pytest.mark.parametrize("block", [Norm(), BatchNorm(), Decoder()], ids=repr)
@pytest.mark.parametrize("load", [False, True])
def test_bounds_do_not_know_how_initial_values_were_computed(block, load) -> None:
    """They are the same numbers everywhere, though made in float32; so are values that are loaded."""
    stage = Stage(blocks=(Linear(), block))
    program = (*([Load()] if load else []), Train(batch_size=4, num_microbatches=2))
    case = with_model(small_case(program=program), stages=(stage, stage), sequence=2, width=4)

    found = reference(case, scale=AT_LOSS, bounds="running").steps[-1]

    for s in (0, 1):
        for bound in found.gradient_bounds[s].values():
            assert 0 < float(bound.tensor().max()) < 1e-10


@pytest.mark.parametrize("m", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("scale", [AT_LOSS, AT_GRADIENT], ids=["loss/m", "gradient/m"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_microbatches_give_the_full_batchs_gradient(m, scale, reduction) -> None:
    """Whatever m and wherever the division: equal microbatches and no batch-dependent block."""
    stage = Stage(blocks=(Mlp(),))
    case = with_model(
        small_case(program=(Train(batch_size=2 * m, num_microbatches=m),)), stages=(stage, stage)
    )
    case = msgspec.structs.replace(case, loss=LossSpec(reduction=reduction))
    model, batch = build_model(case), make_batch(case, 0)
    loss_of(case).function(model(*batch.args), batch.target).backward()

    found = reference(case, scale=scale)

    for name, parameter in model.named_parameters():
        _, s, rest = name.split(".", 2)
        torch.testing.assert_close(_gradient(found, 0, int(s), rest), parameter.grad)


@pytest.mark.parametrize("m", [3, 5, 7])
@pytest.mark.parametrize("block", [BatchNorm(), Mlp()], ids=repr)
def test_dividing_the_loss_or_the_gradient_stays_inside_the_bound(m, block) -> None:
    """A bias before batch norm has a gradient that is zero in exact arithmetic: only the bound can judge it."""
    stage = Stage(blocks=(Linear(), block))
    case = with_model(
        small_case(program=(Train(batch_size=3 * m, num_microbatches=m),)), stages=(stage, stage)
    )

    one, other = reference(case, scale=AT_LOSS), reference(case, scale=AT_GRADIENT)
    bounds = reference(case, scale=AT_LOSS, bounds="running")

    differences = 0
    for s in (0, 1):
        for name, right in one.steps[0].gradients[s].items():
            mine, bound = other.steps[0].gradients[s][name], bounds.steps[0].gradient_bounds[s][name]
            assert right is not None
            assert mine is not None
            assert compare(right, mine, bound=bound) is None
            differences += compare(right, mine) is not None
    assert differences


def test_another_order_of_microbatches_stays_inside_the_cheap_bound() -> None:
    case = small_case(program=(Train(batch_size=10, num_microbatches=5),))
    found = reference(case, scale=AT_GRADIENT, bounds="reassociated")
    model, batch = build_model(case), make_batch(case, 0)
    for micro in reversed(batch.microbatches):
        loss_of(case).function(model(*micro.args), micro.target).backward()

    for name, parameter in model.named_parameters():
        _, s, rest = name.split(".", 2)
        right, bound = found.steps[0].gradients[int(s)][rest], found.steps[0].gradient_bounds[int(s)][rest]
        assert right is not None
        assert compare(right, Array.of(parameter.grad / 5), bound=bound) is None
        assert compare(right, Array.of(parameter.grad / 5 * (1 + 1e-13)), bound=bound) is not None


def test_bounds_do_not_change_a_single_bit() -> None:
    plain = reference(small_case(), scale=AT_LOSS)

    for bounds in ("reassociated", "running"):
        found = reference(small_case(), scale=AT_LOSS, bounds=bounds)
        assert [s.gradients for s in found.steps] == [s.gradients for s in plain.steps]
        assert [s.losses for s in found.steps] == [s.losses for s in plain.steps]


@pytest.mark.parametrize("scale", [AT_LOSS, AT_GRADIENT], ids=["loss/m", "gradient/m"])
def test_a_second_step_adds_and_rescales_nothing(scale) -> None:
    train = Train(batch_size=6, num_microbatches=3)
    between = Eval(batch_size=2, num_microbatches=1)  # the data of a step depend on its place in the program
    both = reference(small_case(program=(train, between, train)), scale=scale)
    apart = reference(small_case(program=(train, Zero(), train)), scale=scale)

    for name in ("blocks.0.weight", "blocks.0.bias"):
        sum_of_steps = _gradient(apart, 0, 0, name) + _gradient(apart, 2, 0, name)
        torch.testing.assert_close(_gradient(both, 2, 0, name), sum_of_steps)


def test_evaluation_changes_neither_gradients_nor_buffers() -> None:
    stage = Stage(blocks=(Linear(), BatchNorm()))
    run = {"batch_size": 4, "num_microbatches": 2}
    case = with_model(small_case(program=(Train(**run), Eval(**run))), stages=(stage, stage))
    train, evaluate = reference(case, scale=AT_LOSS).steps

    assert (evaluate.gradients, evaluate.buffers) == (train.gradients, train.buffers)
    assert len(evaluate.outputs) == 2


def test_an_evaluation_has_the_losses_of_its_outputs() -> None:
    run = {"batch_size": 4, "num_microbatches": 2}
    case = small_case(program=(Eval(**run),), loss=LossSpec(scaled=True))
    (evaluate,) = reference(case, scale=AT_LOSS).steps
    parts = zip(evaluate.outputs, make_batch(case, 0).microbatches, strict=True)

    expected = [
        loss_of(case).function(output.array.tensor(), micro.target, scale=1.75) for output, micro in parts
    ]

    assert [loss.tensor() for loss in evaluate.losses] == expected


@pytest.mark.parametrize("sequence", [0, 2])
def test_a_counted_sum_has_the_gradients_of_the_mean_over_one_full_batch(sequence) -> None:
    stages = (Stage(blocks=(Linear(),)), Stage(blocks=(Head(),)))
    loss = LossSpec(kind="cross_entropy", reduction="sum", ignore=True, counted=True)
    model = Model(width=3, sequence=sequence, classes=3, stages=stages)
    run = Train(batch_size=8, num_microbatches=4)
    case = small_case(model=model, loss=loss, program=(run, Zero(), run))
    found = reference(case, scale=AT_GRADIENT).steps[2]
    whole, batch = build_model(case), make_batch(case, 2)
    mean = torch.nn.functional.cross_entropy(
        whole(*batch.args).flatten(0, -2), batch.target.flatten(), ignore_index=IGNORED
    )
    mean.backward()

    assert [float(one.tensor()) == 0 for one in found.losses] == [False, False, True, False]
    torch.testing.assert_close(torch.stack([one.tensor() for one in found.losses]).sum(), mean.detach())
    for name, parameter in whole.named_parameters():
        _, s, inner = name.split(".", 2)
        torch.testing.assert_close(found.gradients[int(s)][inner].tensor(), parameter.grad)


def test_input_gradients_are_scaled_as_declared() -> None:
    case = with_model(small_case(), input_requires_grad=True)
    scaled = reference(case, scale=AT_LOSS).steps[0].input_gradients[0]
    unscaled = reference(case, scale=AT_GRADIENT).steps[0].input_gradients[0]
    assert scaled is not None
    assert unscaled is not None

    torch.testing.assert_close(scaled.tensor() * 2, unscaled.tensor())


def test_updates_are_those_of_plain_sgd() -> None:
    train = Train(batch_size=4, num_microbatches=2)
    case = small_case(program=(train, Optimize()), optimizer=Sgd(lr=0.125))
    trained, updated = reference(case, scale=AT_LOSS).steps
    before, after = (step.parameters[0]["blocks.0.weight"] for step in (trained, updated))
    assert before is not None
    assert after is not None

    right = before.tensor() - 0.125 * _gradient(Reference(steps=(trained,)), 0, 0, "blocks.0.weight")
    torch.testing.assert_close(after.tensor(), right, rtol=0, atol=1e-15)


def test_dropout_masks_are_replayed() -> None:
    stage = Stage(blocks=(Linear(), Dropout()))
    case = with_model(small_case(program=(Train(batch_size=2, num_microbatches=1),)), stages=(stage, stage))
    keep, drop = (Array.of(torch.full((2, 3), fill_value=value)) for value in (True, False))

    kept = reference(case, scale=AT_LOSS, masks={(0, 0, 0): (keep,), (0, 1, 0): (keep,)})
    dropped = reference(case, scale=AT_LOSS, masks={(0, 0, 0): (keep,), (0, 1, 0): (drop,)})

    assert not _gradient(dropped, 0, 0, "blocks.0.weight").any()
    assert _gradient(kept, 0, 0, "blocks.0.weight").all()


def test_masks_that_nobody_recorded_are_the_case_s_own_whatever_the_process_has_drawn() -> None:
    stage = Stage(blocks=(Linear(), Dropout()))
    case = with_model(small_case(program=(Train(batch_size=8, num_microbatches=1),)), stages=(stage, stage))
    with torch.random.fork_rng(devices=[]):
        one = reference(case, scale=AT_LOSS)
        torch.rand(1)
        again = reference(case, scale=AT_LOSS)
        other = reference(msgspec.structs.replace(case, seed=1), scale=AT_LOSS)

    assert one == again
    assert one != other


def test_the_answer_is_the_reference_in_message_pack() -> None:
    class Context:
        device = "cpu"

    question = Question(case=small_case(), scale_at="gradient", input_gradients_scaled=False)
    data = answer(Context(), msgspec.msgpack.encode(question))

    assert msgspec.msgpack.decode(data, type=Reference) == reference(small_case(), scale=AT_GRADIENT)


def test_recording_is_no_part_of_the_analysed_computation() -> None:
    """Under error analysis, the oracle shows the same values as without it, and also bounds."""
    case = small_case()

    plain, bounded = (reference(case, scale=AT_LOSS, bounds=bounds) for bounds in ("none", "running"))

    assert [step.gradients for step in plain.steps] == [step.gradients for step in bounded.steps]
    assert [step.outputs for step in plain.steps] == [step.outputs for step in bounded.steps]
    assert all(step.gradient_bounds for step in bounded.steps)


@pytest.mark.parametrize("copied", [False, True])
def test_microbatches_are_parts_of_their_batch_or_copies_of_them(copied, monkeypatch) -> None:
    """What a kernel rounds to may depend on where its input lies in memory, so engines' choice is followed."""
    batches, places = [], []
    made = make_batch

    def remembered(*args, **kwargs):
        batches.append(made(*args, **kwargs))
        return batches[-1]

    def placed(*args, **kwargs):
        stage = build_stage(*args, **kwargs)
        stage.register_forward_pre_hook(
            lambda _, inputs: places.append(inputs[0].untyped_storage().data_ptr())
        )
        return stage

    monkeypatch.setattr("pipeconform.case.build.data.make_batch", remembered)
    monkeypatch.setattr("pipeconform.oracle.full_model.build_stage", placed)
    case = small_case(program=(Train(batch_size=4, num_microbatches=2),))
    found = reference(case, scale=AT_LOSS, copied=copied)

    whole = batches[0].args[0].untyped_storage().data_ptr()
    assert [place == whole for place in places[::2]] == [not copied] * 2
    assert found == reference(case, scale=AT_LOSS)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("stage", [0, 1])
def test_the_model_itself_makes_the_mistake_of_the_case_in_its_step(stage, early) -> None:
    """The steps before are as they are without it, and how the model fails is what is told of the rest."""
    train = Train(batch_size=4, num_microbatches=2)
    wrong = msgspec.structs.replace(
        train, mistake=Mistake(where="forward", how="raise", stage=stage, early=early)
    )
    found = reference(small_case(program=(train, wrong)), scale=AT_LOSS)

    assert found.failed == "DeliberateError: raised on purpose"
    assert found.steps == reference(small_case(program=(train,)), scale=AT_LOSS).steps


def test_the_loss_function_raises_in_the_step_of_the_case_s_mistake() -> None:
    run = {"batch_size": 4, "num_microbatches": 2}
    wrong = Train(**run, mistake=Mistake(where="loss", how="raise", stage=1))
    found = reference(small_case(program=(Train(**run), Eval(**run), wrong)), scale=AT_LOSS)

    assert found.failed == "DeliberateError: raised on purpose"
    assert found.steps == reference(small_case(program=(Train(**run), Eval(**run))), scale=AT_LOSS).steps


@pytest.mark.parametrize("early", [False, True])
def test_a_mistake_that_the_model_takes_shows_in_its_outputs(early) -> None:
    """The last stage hands on float32: a loss can be computed of that, and gradients of the loss."""
    mistake = Mistake(where="output", how="down", stage=1, early=early)
    found = reference(
        small_case(program=(Train(batch_size=4, num_microbatches=2, mistake=mistake),)), scale=AT_LOSS
    )

    assert found.failed is None
    assert [one.array.dtype for one in found.steps[0].outputs] == ["float32"] * 2
    assert all(found.steps[0].gradients[0].values())


# ------------------------------------------------------------------ programs, beside plain torch

STEP = Train(batch_size=4, num_microbatches=2)
OPTIMIZERS = {
    "sgd": (Sgd(lr=0.125), lambda p: torch.optim.SGD(p, lr=0.125)),
    "momentum": (Sgd(lr=0.125, momentum=0.5), lambda p: torch.optim.SGD(p, lr=0.125, momentum=0.5)),
    "clipped": (Sgd(lr=0.125, clip=Clip(limit=0.01)), lambda p: torch.optim.SGD(p, lr=0.125)),
    "adam": (Adam(lr=0.125), lambda p: torch.optim.Adam(p, lr=0.125)),
}


def _trained(case, optimizer, *, clipped=False):
    """The parameters after a program of training steps, each of them followed by an update and by clearing."""
    model = build_model(case)
    updates = optimizer(model.parameters())
    for index, step in enumerate(case.program):
        if not isinstance(step, Train):
            continue
        updates.zero_grad()
        batch = make_batch(case, index)
        for micro in batch.microbatches:
            (loss_of(case).function(model(*micro.args), micro.target) / batch.num_microbatches).backward()
        if clipped:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        updates.step()
    return dict(model.named_parameters())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_follow_those_of_the_optimizer_that_is_named(name) -> None:
    spec, optimizer = OPTIMIZERS[name]
    case = small_case(program=(STEP, Optimize(), Zero(), STEP, Optimize()), optimizer=spec)
    right = _trained(case, optimizer, clipped=name == "clipped")
    found = reference(case, scale=AT_LOSS).steps[-1].parameters

    for full, parameter in right.items():
        _, s, inner = full.split(".", 2)
        torch.testing.assert_close(found[int(s)][inner].tensor(), parameter.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("made", [False, True])
def test_what_is_frozen_has_no_gradient_until_it_is_unfrozen(made: bool) -> None:
    train = Train(batch_size=4, num_microbatches=2)
    stages = (Stage(blocks=(Linear(),), frozen=made), Stage(blocks=(Linear(),)))
    first = () if made else (Freeze(stage=0),)
    program = (*first, train, Zero(), Freeze(stage=0, frozen=False), train, Zero(), Freeze(stage=1), train)
    case = with_model(small_case(program=program), stages=stages)

    runs = [n for n, step in enumerate(program) if isinstance(step, Train)]

    found = reference(case, scale=AT_LOSS).steps
    shown = [[found[n].gradients[s]["blocks.0.weight"] is not None for s in (0, 1)] for n in runs]

    assert shown == [[False, True], [True, True], [True, False]]


def test_an_update_without_any_trainable_parameter_changes_nothing() -> None:
    frozen = Stage(blocks=(Linear(),), frozen=True)
    for optimizer in (Sgd(lr=1.0), Adam(lr=1.0)):
        case = with_model(
            small_case(program=(STEP, Optimize()), optimizer=optimizer), stages=(frozen, frozen)
        )
        trained, updated = reference(case, scale=AT_LOSS).steps

        assert trained.parameters == updated.parameters
        assert not any(value for own in trained.gradients.values() for value in own.values())


@pytest.mark.parametrize("set_to_none", [False, True])
def test_gradients_are_cleared_as_the_program_says(set_to_none) -> None:
    case = small_case(program=(STEP, Zero(set_to_none=set_to_none)))
    cleared = reference(case, scale=AT_LOSS).steps[1].gradients

    for own in cleared.values():
        for value in own.values():
            assert value is None if set_to_none else not value.tensor().any()


def test_a_state_that_is_loaded_replaces_every_parameter_and_buffer() -> None:
    case = with_model(small_case(program=(STEP, Load())), stages=(Stage(blocks=(Linear(), BatchNorm())),) * 2)
    after = reference(case, scale=AT_LOSS).steps[1]
    loaded = loaded_state(case, 1)

    for s, own in loaded.items():
        for name, value in own.items():
            shown = after.parameters[s].get(name) or after.buffers[s][name]
            assert torch.equal(shown.tensor(), value)


@pytest.mark.parametrize("over", ["microbatch", "batch"])
def test_a_mean_weights_microbatches_or_samples(over) -> None:
    """Of five samples in two microbatches, three and two."""
    case = small_case(program=(Train(batch_size=5, num_microbatches=2),))
    model, batch = build_model(case), make_batch(case, 0)
    sizes = [len(micro.target) for micro in batch.microbatches]
    assert sizes == [3, 2]
    for micro, size in zip(batch.microbatches, sizes, strict=True):
        share = size / 5 if over == "batch" else 1 / 2
        (loss_of(case).function(model(*micro.args), micro.target) * share).backward()
    found = reference(case, scale=AT_LOSS, loss_over=over)

    for name, parameter in model.named_parameters():
        _, s, rest = name.split(".", 2)
        torch.testing.assert_close(_gradient(found, 0, int(s), rest), parameter.grad)


@pytest.mark.parametrize("scale", [AT_LOSS, AT_GRADIENT, GradientScale(at="gradient")], ids=["a", "b", "c"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_gradients_of_what_the_caller_gave_are_scaled_as_declared(scale, reduction) -> None:
    """Of inputs and of keyword arguments: divided by m in a mean, unless only gradients of weights are."""
    case = with_model(
        small_case(program=(STEP,), loss=LossSpec(reduction=reduction)),
        input_requires_grad=True,
        kwargs=(Kwarg(stage=1),),
    )
    model, batch = [build_stage(case, s) for s in range(2)], make_batch(case, 0)
    for micro in batch.microbatches:
        output = model[1](model[0](*micro.args), **micro.kwargs[1])
        loss_of(case).function(output, micro.target).backward()
    divided = reduction == "mean" and (scale.at == "loss" or scale.input_gradients_scaled)
    found = reference(case, scale=scale).steps[0]

    factor = 1 / 2 if divided else 1.0
    torch.testing.assert_close(found.input_gradients[0].tensor(), batch.args[0].grad * factor)
    (name,) = found.kwarg_gradients[1]
    torch.testing.assert_close(found.kwarg_gradients[1][name].tensor(), batch.kwargs[1][name].grad * factor)


def test_cheap_bounds_add_up_over_steps_that_accumulate_and_begin_anew_after_clearing() -> None:
    """(m + 2)·ε for what a step adds, from each microbatch, and for what was there before."""
    eps, m = torch.finfo(torch.float64).eps, 2
    name = "blocks.0.weight"

    def magnitude(case, index):
        model, batch = build_model(case), make_batch(case, index)
        total = 0
        for micro in batch.microbatches:
            model.zero_grad()
            loss_of(case).function(model(*micro.args), micro.target).backward()
            total = total + model.stages[0].blocks[0].weight.grad.abs()
        return total

    adding = small_case(program=(STEP, Eval(batch_size=2, num_microbatches=1), STEP))
    clearing = small_case(program=(STEP, Zero(), STEP))
    for scale, divisor in ((AT_GRADIENT, m), (AT_LOSS, m)):
        first = (m + 2) * eps * magnitude(adding, 0) / divisor
        again = (m + 2) * eps * magnitude(adding, 2) / divisor
        found = reference(adding, scale=scale, bounds="reassociated")
        before = _gradient(found, 0, 0, name).abs()

        bounds = [found.steps[index].gradient_bounds[0][name].tensor() for index in (0, 2)]
        torch.testing.assert_close(bounds[0], first, rtol=1e-9, atol=0)
        torch.testing.assert_close(bounds[1], first + again + (m + 2) * eps * before, rtol=1e-9, atol=0)
        anew = reference(clearing, scale=scale, bounds="reassociated").steps[2].gradient_bounds[0][name]
        torch.testing.assert_close(anew.tensor(), again, rtol=1e-9, atol=0)


def test_bounds_are_computed_where_float64_is_or_on_the_cpu() -> None:
    assert where_bounds_are_computed("cpu") == "cpu"
    assert where_bounds_are_computed("meta") == "cpu"  # nothing can be computed there


@pytest.mark.parametrize("bounds", ["reassociated", "running"])
def test_bounds_of_a_device_without_float64_are_those_of_the_cpu(bounds) -> None:
    here, there = (
        reference(small_case(program=(STEP,)), scale=AT_LOSS, bounds=bounds, device=device)
        for device in ("cpu", "meta")
    )

    assert here == there


def test_without_bounds_there_are_none_and_with_flow_there_is_what_passes_between_stages() -> None:
    case = small_case(program=(STEP,))
    plain = reference(case, scale=AT_LOSS).steps[0]
    bounded = reference(case, scale=AT_LOSS, bounds="running", flow=True).steps[0]

    for of in (
        plain.gradient_bounds,
        plain.parameter_bounds,
        plain.loss_bounds,
        plain.output_bounds,
        plain.flow,
    ):
        assert not of
    passed = {(one.kind, one.stage, one.call) for one in bounded.flow}
    assert passed == {
        (kind, stage, k)
        for kind in ("input", "output", "output gradient", "input gradient")
        for stage in (0, 1)
        for k in (0, 1)
        if not (kind == "input gradient" and stage == 0)
    }
    assert len(bounded.loss_bounds) == len(bounded.output_bounds) == 2


def test_steps_that_are_no_runs_have_no_results() -> None:
    case = small_case(program=(STEP, Zero(), Optimize()), optimizer=Sgd(lr=0.5))
    for step in reference(case, scale=AT_LOSS).steps[1:]:
        assert (step.outputs, step.losses, step.inputs, step.input_gradients) == ((), (), (), ())


def test_an_error_of_the_model_itself_is_not_hidden_if_the_case_has_no_mistake(monkeypatch) -> None:
    def fails(*_, **__):
        raise ValueError("no batch")

    monkeypatch.setattr("pipeconform.case.build.data.make_batch", fails)
    with pytest.raises(ValueError, match="no batch"):
        reference(small_case(), scale=AT_LOSS)


def test_an_error_of_the_analysis_is_not_the_model_s_own(monkeypatch) -> None:
    """A mistaken case of whose model bounds are asked does not fail by itself."""

    def fails(*_, **__):
        raise ZeroDivisionError("in a rule")

    scarce = Train(batch_size=4, num_microbatches=2, mistake=Mistake(where="batch", how="scarce"))
    case = small_case(program=(scarce,))
    assert reference(case, scale=AT_LOSS, bounds="running").failed is None

    monkeypatch.setattr(RunningError, "_account", fails)
    with pytest.raises(ZeroDivisionError, match="in a rule"):
        reference(case, scale=AT_LOSS, bounds="running")


@pytest.mark.parametrize("kind", ["complex", "rotations"])
def test_complex_tensors_between_stages_have_bounds(kind):
    passage = Passage(kind=kind, source=0, last=1, users=(1,))
    case = with_model(small_case(program=(STEP,)), container="tuple", passages=(passage,))

    step = reference(case, scale=AT_LOSS, bounds="running", flow=True).steps[0]

    crossing = [one for one in step.flow if one.kind == "output" and one.stage == 0]
    assert crossing
    assert all(bool((bound.tensor() > 0).any()) for bound in step.gradient_bounds[0].values())
