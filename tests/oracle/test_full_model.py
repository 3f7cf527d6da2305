"""The oracle against gradients computed by hand and by plain autograd on the full batch."""

import msgspec
import pytest
import torch

from pipeconform.adapter import GradientScale
from pipeconform.bounds.numerics import compare
from pipeconform.case.blocks import BatchNorm, Decoder, Dropout, Head, Linear, Mlp, Norm
from pipeconform.case.build.data import IGNORED, loss_of, make_batch
from pipeconform.case.build.modules import build_model, build_stage
from pipeconform.case.case import Eval, Load, LossSpec, Model, Optimize, Sgd, Stage, Train, World, Zero
from pipeconform.case.mistakes import Mistake
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Reference
from pipeconform.oracle.full_model import Question, answer, reference
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
