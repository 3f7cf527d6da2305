"""In 16 bits the oracle's bounds tell a right gradient from a wrong one, where kernels are known to round once."""

import pytest
import torch
from msgspec import structs

from pipeconform.adapter import GradientScale
from pipeconform.bounds.numerics import compare
from pipeconform.case.blocks import BatchNorm, Embedding, Head, Linear, Mlp, Norm
from pipeconform.case.build.data import loss_of, make_batch
from pipeconform.case.build.modules import build_stage
from pipeconform.case.case import Clip, Optimize, Passage, Sgd, Split, Stage, Train, Zero
from pipeconform.observe.array import Array
from pipeconform.oracle.full_model import reference
from pipeconform.oracle.kernels import round_once
from tests.case.examples import in_mixed_precision, small_case, with_model

AT_LOSS = GradientScale(at="loss")
FLAT = Stage(blocks=(Linear(),))
LONG = Stage(blocks=(Linear(bias=False), Mlp()))


def narrow(*, m=2, rows=1, dtype="bfloat16", steps=1, classes=0, **model):
    train = Train(batch_size=m * rows, num_microbatches=m)
    case = small_case(program=(train, *(Zero(), train) * (steps - 1)))
    fields = {"dtype": dtype, "classes": classes, **model}
    if not classes:
        return with_model(case, **fields)
    loss = structs.replace(case.loss, kind="cross_entropy")
    return structs.replace(case, model=structs.replace(case.model, **fields), loss=loss)


def autocast(case):
    train = structs.replace(case.program[0], autocast=True)
    return structs.replace(with_model(case, dtype="float32"), program=(train,))


def gradients(case, *, order, late=False, output=False):
    """Per stage and name, with microbatches in some order, divided by m where the caller says."""
    stages, batch, loss = [build_stage(case, s) for s in range(2)], make_batch(case, 0), loss_of(case)
    m = batch.num_microbatches
    for k in order:
        micro = batch.microbatches[k]
        found = stages[1](stages[0](*micro.args))
        value = loss.function(found, micro.target)
        if output:
            (gradient,) = torch.autograd.grad(value, found, retain_graph=True)
            found.backward(gradient / m)
        else:
            (value if late else value / m).backward()
    return {
        (s, name): p.grad / m if late else p.grad
        for s, stage in enumerate(stages)
        for name, p in stage.named_parameters()
    }


@pytest.mark.parametrize(
    ("case", "is_known"),
    [
        (narrow(), True),
        (narrow(dtype="float16"), True),
        (autocast(narrow()), True),
        (in_mixed_precision(narrow()), True),
        (narrow(dtype="float32"), False),
        (narrow(stages=(Stage(blocks=(Norm(), Mlp())), FLAT)), True),
        (narrow(stages=(Stage(blocks=(Linear(), BatchNorm())), FLAT)), False),
        (narrow(sequence=2), False),
        (narrow(sequence=2, stages=(LONG, LONG)), True),
        (narrow(sequence=2, stages=(LONG, FLAT)), False),
        (narrow(sequence=2, tokens=True, stages=(Stage(blocks=(Embedding(), *LONG.blocks)), LONG)), True),
        (narrow(carried=("mask",), container="tuple"), True),
        (narrow(carried=("stream",), container="tuple"), False),
        (narrow(tied=(0, 1)), False),
        (narrow(output="tuple"), False),
        (narrow(split=Split()), False),
        (narrow(container="tuple", passages=(Passage(kind="stream", source=0, last=1, users=(1,)),)), False),
    ],
    ids=repr,
)
def test_only_models_whose_kernels_are_the_same_in_every_engine_count(case, is_known):
    assert round_once(case, device_type="cpu") is is_known
    assert not round_once(case, device_type="cuda")


@pytest.mark.parametrize(
    "case",
    [
        narrow(),
        narrow(m=4, dtype="float16"),
        narrow(m=4, sequence=3, stages=(Stage(blocks=(Linear(bias=False),)),) * 2),
        narrow(stages=(FLAT, Stage(blocks=(Linear(), Head()))), classes=3),
        autocast(narrow(m=4)),
        in_mixed_precision(narrow(m=4)),
    ],
    ids=repr,
)
def test_gradients_of_zero_of_twice_the_size_and_of_the_other_sign_are_refused(case):
    step = reference(case, scale=AT_LOSS, bounds="running").steps[0]

    for s, own in step.gradients.items():
        for name, right in own.items():
            bound = step.gradient_bounds[s][name]
            for factor in (0.0, 2.0, -1.0):
                wrong = Array.of(right.tensor() * factor)
                assert compare(right, wrong, bound=bound) is not None, (s, name, factor)


@pytest.mark.parametrize("how", [{}, {"late": True}, {"output": True}], ids=repr)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("m", [2, 3, 4, 7])
def test_other_orders_and_other_places_of_the_mean_stay_inside_the_bound(m, dtype, how):
    case = narrow(m=m, rows=2, dtype=dtype, width=4, stages=(Stage(blocks=(Mlp(),)), FLAT))
    right = reference(case, scale=AT_LOSS).steps[0].gradients
    bounds = reference(case, scale=AT_LOSS, bounds="running").steps[0].gradient_bounds

    for order in (range(m), range(m - 1, -1, -1)):
        for (s, name), gradient in gradients(case, order=order, **how).items():
            assert compare(right[s][name], Array.of(gradient), bound=bounds[s][name]) is None, (s, name)


@pytest.mark.parametrize("m", [1, 2, 4])
def test_the_analysis_does_not_change_a_single_bit(m):
    case = narrow(m=m, rows=2, steps=2, stages=(Stage(blocks=(Mlp(),)), FLAT))
    plain, bounded = reference(case, scale=AT_LOSS), reference(case, scale=AT_LOSS, bounds="running")

    for one, other in zip(plain.steps, bounded.steps, strict=True):
        assert (one.gradients, one.losses, one.outputs) == (other.gradients, other.losses, other.outputs)


def test_gradients_that_are_kept_from_the_step_before_may_be_added_in_any_order():
    """(g + a) + b and g + (a + b) differ by more than a rounding of their sum, where g and a nearly cancel."""
    train = Train(batch_size=2, num_microbatches=2)
    kept = with_model(small_case(program=(train, train)), dtype="bfloat16")
    cleared = structs.replace(kept, program=(train, Zero(set_to_none=True), train))

    def widest(case):
        bounds = reference(case, scale=AT_LOSS, bounds="running").steps[-1].gradient_bounds
        return max(float(own[name].tensor().max()) for own in bounds.values() for name in own)

    assert widest(kept) > 2 * widest(cleared)


def test_clipped_updates_of_float32_copies_are_known_to_the_last_bits():
    """The norm of gradients in doubt is in doubt, too: with every addition rounded, nothing was known behind it."""
    train = Train(batch_size=2, num_microbatches=2)
    update = (train, Optimize(), Zero(set_to_none=True))
    case = structs.replace(
        narrow(width=4),
        program=(*update, *update[:-1]),
        optimizer=Sgd(lr=0.125, masters=True, clip=Clip(limit=0.0625)),
    )
    step = reference(case, scale=AT_LOSS, bounds="running").steps[-1]

    for s, own in step.parameters.items():
        for name, value in own.items():
            allowed = step.parameter_bounds[s][name].tensor() / value.tensor().double().abs()
            assert float(allowed.median()) <= 2.0**-6, (s, name)
