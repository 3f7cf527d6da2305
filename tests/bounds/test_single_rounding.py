"""16-bit results of kernels that round once: certain to the last bit, except near a rounding boundary."""

import pytest
import torch

from pipeconform.bounds.ball import Ball, Sampler, Unit
from pipeconform.bounds.rules import ELEMENTWISE, Call
from pipeconform.bounds.running_error import RunningError
from pipeconform.bounds.single_rounding import rounded_once

pytestmark = pytest.mark.usefixtures("reproducible")

NARROW = (torch.bfloat16, torch.float16)


def drawn(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def permuted_linear(x, weight, bias, *, order):
    """A linear map in float32, its products added up in `order`, rounded once."""
    total = torch.zeros(len(x), len(weight))
    for k in order:
        total = total + x[:, k, None].float() * weight[None, :, k].float()
    return (total + bias.float()).to(x.dtype)


def layers(x, parameters, linear):
    for weight, bias in parameters:
        x = torch.tanh(linear(x, weight, bias))
    return x


def parameters_of(dtype, *, layers=5, width=6):
    return [
        (drawn(width, width, dtype=dtype, seed=2 * n) * 0.5, drawn(width, dtype=dtype, seed=2 * n + 1))
        for n in range(layers)
    ]


@pytest.mark.parametrize("dtype", NARROW)
def test_other_orders_within_a_kernel_keep_the_bound_and_it_allows_less_than_a_fiftieth(dtype):
    parameters, x = parameters_of(dtype), drawn(8, 6, dtype=dtype, seed=99)
    with RunningError() as plainly:
        plain = layers(x, parameters, torch.nn.functional.linear)
    with RunningError() as analysis, analysis.rounding_once():
        shown = layers(x, parameters, torch.nn.functional.linear)

    for order in (range(6), range(5, -1, -1), (3, 0, 5, 1, 4, 2)):
        other = layers(x, parameters, lambda *args, order=order: permuted_linear(*args, order=order))
        assert bool(((other.double() - shown.double()).abs() <= 2 * analysis.error(shown)).all())
    assert analysis.error(shown).mean() < plainly.error(plain).mean() / 50


@pytest.mark.parametrize("dtype", NARROW)
def test_a_result_on_a_rounding_boundary_is_in_doubt_by_one_step(dtype):
    step = torch.finfo(dtype).eps
    weight = torch.tensor([[1.0, step / 2, 2.0**-12, -(2.0**-12)]], dtype=dtype)
    with RunningError() as analysis, analysis.rounding_once():
        between = (
            torch.ones(1, 4, dtype=dtype) @ weight.T
        )  # 1 + step / 2: a tie, if float32 adds nothing to it
        certain = torch.ones(1, 4, dtype=dtype) @ (weight * torch.tensor([1, 0, 1, 1], dtype=dtype)).T

    assert analysis.error(between).item() == pytest.approx(step)
    assert analysis.error(certain).item() == 0


@pytest.mark.parametrize("dtype", NARROW)
def test_doubt_does_not_double_with_every_operation(dtype):
    step = torch.finfo(dtype).eps
    weight = torch.tensor([[1.0, step / 2, 2.0**-12, -(2.0**-12)]], dtype=dtype)
    with RunningError() as analysis, analysis.rounding_once():
        first = torch.ones(1, 4, dtype=dtype) @ weight.T  # a tie
        last = first
        for _ in range(6):
            last = (last * 1.0).clone()[:, :].contiguous()

    assert bool(analysis.error(first).any())
    assert bool((analysis.error(last) <= analysis.error(first)).all())
    assert bool((analysis.bound(last) <= analysis.bound(first)).all())


def test_doubt_that_has_been_copied_into_other_doubt_may_double_again():
    """Of a tensor some of whose elements were rounded elsewhere, what is shown does not stand for the exact value."""
    x = drawn(4, dtype=torch.bfloat16)
    with RunningError() as analysis:
        mixed = x * 3.0
        with analysis.rounding_once():
            mixed[:2] = x[:2] * 3.0
            doubled = mixed * 1.0

    assert bool((analysis.error(doubled)[:2] == 0).all())
    assert bool((analysis.error(doubled)[2:] >= analysis.error(mixed)[2:]).all())
    assert float(analysis.error(mixed)[2:].min()) > 0


@pytest.mark.parametrize("dtype", NARROW)
def test_sums_of_a_few_numbers_are_exact_before_they_are_rounded(dtype):
    step = torch.finfo(dtype).eps
    numbers = torch.tensor([1.0, step / 2], dtype=dtype)
    with RunningError() as analysis, analysis.rounding_once():
        together = numbers.sum()  # a tie, which every kernel rounds alike
        one_by_one = numbers[0] + numbers[1]

    assert analysis.error(together).item() == analysis.error(one_by_one).item() == 0


@pytest.mark.parametrize("dtype", NARROW)
def test_a_sum_that_float32_does_not_hold_is_in_doubt_on_a_rounding_boundary(dtype):
    """Halfway between two numbers, where the 1 and −1 that cancel may be lost one by one."""
    half = torch.finfo(dtype).eps * 2.0**15 / 2
    held = torch.tensor([2.0**15, half, 0.25, -0.25], dtype=dtype)
    lost = torch.tensor([2.0**15, half, 2.0**-9, -(2.0**-9)], dtype=dtype)
    with RunningError() as analysis, analysis.rounding_once():
        certain, doubtful = held[:2].sum(), lost.sum()

    assert analysis.error(certain).item() == 0
    assert analysis.error(doubtful).item() == pytest.approx(2 * half)


@pytest.mark.parametrize(("pad", "is_held"), [(62.0, True), (63.0, False)])
def test_sums_of_less_than_two_to_the_23_steps_are_held_by_float32(pad, is_held):
    """The step is that of 1, 2**-7; with 63, the sizes add up to 2**16, and 32896 is halfway between two numbers."""
    pairs = [sign * value for value in (16256.0, pad, 1.0) for sign in (1, -1)]
    numbers = torch.tensor([2.0**15, 2.0**7, *pairs], dtype=torch.bfloat16)
    with RunningError() as analysis, analysis.rounding_once():
        total = numbers.sum()

    assert (analysis.error(total).item() == 0) is is_held


def test_a_result_that_one_rounding_does_not_give_is_charged_for_every_rounding():
    call = Call(
        name="add",
        overload=torch.ops.aten.add.Tensor,
        args={"self": torch.ones(1).bfloat16(), "other": torch.ones(1).bfloat16(), "alpha": 1},
        outputs=[torch.tensor([2.25], dtype=torch.bfloat16)],
        unit=Unit.of(torch.bfloat16, Sampler(0)),
        lookup=lambda tensor: Ball.exact(tensor.double(), Unit.of(tensor.dtype, Sampler(0))),
    )
    plain = Ball(torch.tensor([2.25]).double(), torch.tensor([0.5]).double(), call.unit)

    (ball,) = rounded_once(call, ELEMENTWISE["add"], record=lambda tensor, ball: None, plainly=[plain])

    assert ball is not None
    assert ball.rad.item() == plain.rad.item()


def test_outside_of_the_region_every_addition_rounds():
    numbers = drawn(3, 5, dtype=torch.bfloat16)
    with RunningError() as analysis:
        with analysis.rounding_once():
            inside = numbers[0] + numbers[1]
        outside = numbers[0] + numbers[1] + numbers[2]

    assert not analysis.error(inside).any()
    assert bool((analysis.error(outside) > 0).all())


@pytest.mark.parametrize("dtype", NARROW)
def test_what_is_looked_up_by_positions_or_chosen_by_truth_values_is_certain(dtype):
    table, where = drawn(5, 3, dtype=dtype), torch.tensor([[0, 4, 2]])
    with RunningError() as analysis, analysis.rounding_once():
        found = [
            torch.nn.functional.embedding(where[0], table),
            table.gather(0, where),
            table[where[0]],
            table.index_select(0, where[0]),
            torch.where(table > 0, table, -table),
            table.masked_fill(table > 0, 1.0),
            torch.zeros(5, 3, dtype=dtype).index_add(0, where[0], table[:3]),
        ]

    assert all(not analysis.error(one).any() for one in found)


def test_gradients_and_writes_in_place_are_certain_too():
    weight = (drawn(4, 4, dtype=torch.bfloat16) * 0.5).requires_grad_()
    x = drawn(3, 4, dtype=torch.bfloat16, seed=1)
    with RunningError() as analysis, analysis.rounding_once():
        y = torch.tanh(x @ weight.T).double()
        y.square().mean().backward()
        written = x.clone().add_(x)
    assert not analysis.error(written).any()
    assert weight.grad.dtype == torch.bfloat16
    assert analysis.error(weight.grad).max() < 1e-6
