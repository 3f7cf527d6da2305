import pytest
import torch

from pipeconform.bounds.ball import Ball, Sampler, Unit, _by_samples, _of_samples, choose, either

pytestmark = pytest.mark.usefixtures("reproducible")

PRODUCTS = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((3,), (6, 3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((2, 3), (6, 3, 4)),
    ((6, 2, 3), (3,)),
    ((6, 2, 3), (3, 4)),
    ((6, 2, 3), (6, 3, 4)),
]


@pytest.mark.parametrize(("left", "right"), PRODUCTS, ids=str)
def test_products_of_all_samples_at_once_are_those_of_each_sample(left, right):
    """A product of five samples is five products, whatever the shapes broadcast to."""
    first, second = (torch.randn(5, *shape, dtype=torch.float64) for shape in (left, right))

    torch.testing.assert_close(
        _of_samples(torch.matmul, first, second[0]), torch.stack([torch.matmul(a, second[0]) for a in first])
    )
    torch.testing.assert_close(
        _by_samples(torch.matmul, first[0], second), torch.stack([torch.matmul(first[0], b) for b in second])
    )


ONE_BY_ONE = {((3,), (6, 3, 4)), ((2, 3), (6, 3, 4)), ((6, 2, 3), (3,)), ((6, 2, 3), (3, 4))}
"""Shapes with which samples of the factor that has less dims are multiplied one by one."""


@pytest.mark.parametrize(("left", "right"), PRODUCTS, ids=str)
def test_matrix_products_of_all_samples_are_one_call_where_that_means_the_same(left, right, monkeypatch):
    calls, product = [], torch.matmul

    def counted(first, second):
        calls.append(first.shape)
        return product(first, second)

    monkeypatch.setattr(torch, "matmul", counted)
    _of_samples(torch.matmul, torch.randn(5, *left), torch.randn(right))
    of_left = len(calls)
    _by_samples(torch.matmul, torch.randn(left), torch.randn(5, *right))
    of_right = len(calls) - of_left

    several = (left, right) in ONE_BY_ONE
    assert (of_left, of_right) == (
        5 if several and len(left) < len(right) else 1,
        5 if several and len(right) < len(left) else 1,
    )


# ------------------------------------------------------------------------- errors by hand, without samples

U = 2.0**-24
EXACT = Unit.of(torch.float32, Sampler(0))


def ball(value, error=0.0, unit=EXACT):
    """One number and its error, in float32 unless told otherwise."""
    return Ball(torch.tensor([value], dtype=torch.float64), torch.tensor([error], dtype=torch.float64), unit)


def exactly(value):
    return Ball.exact(torch.tensor([value], dtype=torch.float64), EXACT)


def error(found):
    return found.rad.item()


def test_a_dtype_has_half_of_its_last_digit_and_its_smallest_number_and_integers_have_neither():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        unit = Unit.of(dtype, Sampler(0))
        assert (unit.u, unit.tiny) == (torch.finfo(dtype).eps / 2, torch.finfo(dtype).smallest_normal)
    half = Unit.of(torch.float16, Sampler(0))  # computed in float32: subnormals are kept
    assert (half.u, half.tiny) == (2.0**-11, 2.0**-24)
    for dtype in (torch.int64, torch.bool):
        assert Unit.of(dtype, Sampler(0))[:2] == (0.0, 0.0)


def test_of_two_units_the_coarser_one_counts_in_each_respect():
    bf16, f16 = (Unit.of(dtype, Sampler(0)) for dtype in (torch.bfloat16, torch.float16))

    assert bf16.wider(f16)[:2] == f16.wider(bf16)[:2] == (bf16.u, f16.tiny)


def test_zeros_are_not_rounded_and_tiny_numbers_may_be_lost_whole():
    tiny = torch.finfo(torch.float32).smallest_normal
    found = EXACT.rounding(torch.tensor([0.0, 1e-300, 1.0], dtype=torch.float64), 2)

    assert found.tolist() == pytest.approx([0.0, 2 * tiny, 2 * (U + tiny)])


@pytest.mark.parametrize(
    ("value", "is_exact"),
    [(0.0, True), (3.0, True), (-(2.0**24), True), (2.0**24 + 2, False), (0.5, False), (0.1, False)],
)
def test_constants_are_exact_that_are_integers_which_the_dtype_holds(value, is_exact):
    found = Ball.constant(value, EXACT, torch.ones(1))

    assert found.rad.item() == pytest.approx(0.0 if is_exact else abs(value) * U)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (exactly(3.0), exactly(4.0), 0.0),
        (exactly(3.0), exactly(0.5), U * 3.5),
        (exactly(0.5), exactly(3.0), U * 3.5),
        (exactly(2.0**24 - 1), exactly(0.0), 0.0),
        (exactly(2.0**24), exactly(0.0), U * 2**24),
        (exactly(2.0**23), exactly(2.0**23 - 1), 0.0),
        (ball(3.0, 0.25), exactly(4.0), 0.25 + U * (3.5 + 4)),
        (ball(3.0, 0.25), ball(4.0, 0.5), 0.75 + U * (3.5 + 5)),
    ],
    ids=["integers", "half", "half first", "largest", "too large", "their sum", "inexact", "both"],
)
def test_a_sum_is_rounded_once_unless_it_is_of_integers_that_are_known(a, b, expected):
    assert error(a + b) == pytest.approx(expected)
    assert error(b + a) == pytest.approx(expected)


def test_a_chain_of_sums_is_rounded_for_every_addition_in_any_order():
    """Three numbers of size 0.5: two additions, each of up to all of them."""
    one, two, three = (exactly(0.5) for _ in range(3))

    for found in ((one + two) + three, one + (two + three)):
        assert error(found) == pytest.approx(2 * U * 1.5)


def test_a_sum_over_dims_rounds_one_time_less_than_there_are_terms():
    values = Ball.exact(torch.full((2, 3), 0.5, dtype=torch.float64), EXACT)

    assert error(values.sum([])) == pytest.approx(5 * U * 3)
    assert values.sum([1]).rad.tolist() == pytest.approx([2 * U * 1.5] * 2)
    assert values.sum([-2], keepdim=True).rad.tolist() == [pytest.approx([U * 1.0] * 3)]
    assert values.sum([0, 1]).rad.item() == pytest.approx(5 * U * 3)
    single = Ball.exact(torch.tensor(0.5, dtype=torch.float64), EXACT)
    assert single.sum([]) is single


def test_a_product_errs_by_either_factor_s_error_times_the_other_and_once_more():
    found = ball(3.0, 0.25) * ball(4.0, 0.5)

    assert found.mid.item() == 12
    assert error(found) == pytest.approx(3 * 0.5 + 0.25 * 4 + 3 * 0.25 * 0.5 + U * (3.5 * 5))
    assert error(exactly(3.0) * exactly(5.0)) == pytest.approx(U * 15)


def test_a_number_that_scales_a_tensor_may_scale_its_terms_from_either_side():
    """As its reciprocal, too: two roundings for each term, and a sum of three terms stays one."""
    factor = Ball.exact(torch.tensor(3.0, dtype=torch.float64), EXACT)
    total = exactly(0.5) + exactly(0.5) + exactly(0.5)
    for found in (total * factor, factor * total):
        assert error(found) == pytest.approx(3 * 2 * U * 1.5 + 2 * U * 4.5)
        assert (found.terms, found.mid.item()) == (3, 4.5)


def test_a_quotient_errs_more_the_nearer_its_divisor_may_be_to_zero():
    plain = exactly(1.0) / exactly(4.0)
    assert error(plain) == pytest.approx(2 * U * 0.25)

    inexact = exactly(1.0) / ball(4.0, 0.5)
    # |1/y' - 1/y| with y' of at least 4 - 1 and y of at least 4 - 1/2
    assert error(inexact) == pytest.approx(1 / 3.5 * 0.5 / 3 + 2 * U / 3)
    assert error(ball(1.0, 0.25) / exactly(4.0)) == pytest.approx(0.25 / 4 + 2 * U * 1.5 / 4)
    assert torch.isinf((exactly(1.0) / ball(4.0, 2.0)).rad).all()
    assert error(exactly(0.0) / exactly(4.0)) == 0


def test_infinities_and_what_is_no_number_have_no_error_and_unknown_errors_are_infinite():
    values = torch.tensor([1.0, torch.inf, torch.nan, 2.0], dtype=torch.float64)
    errors = torch.tensor([0.5, 1.0, 1.0, torch.nan], dtype=torch.float64)
    found = Ball(values, errors, EXACT)

    assert found.rad.tolist() == [pytest.approx(0.5), 0.0, 0.0, torch.inf]


@pytest.mark.parametrize(("doubt", "expected"), [(0.0, [0.5, 0.25]), (1.0, [2 + 3 * 0.75, 2 + 3 * 0.75])])
def test_a_choice_in_doubt_errs_by_the_step_between_what_may_be_chosen(doubt, expected):
    take = Ball(
        torch.tensor([1.0, 0.0], dtype=torch.float64), torch.full((2,), doubt, dtype=torch.float64), EXACT
    )
    yes, no = (
        Ball(torch.full((2,), value, dtype=torch.float64), torch.full((2,), rad, dtype=torch.float64), EXACT)
        for value, rad in ((3.0, 0.5), (1.0, 0.25))
    )
    found = choose(take, yes, no)

    assert found.mid.tolist() == [3.0, 1.0]
    assert found.rad.tolist() == pytest.approx(expected)


def test_a_function_errs_by_its_slope_its_bend_and_its_kernel():
    x = ball(2.0, 0.5)
    value, slope = torch.tensor([10.0]).double(), torch.tensor([-3.0]).double()

    spread = 3 * 0.5 + 2 * 4.0 * 0.25
    assert error(x.smooth(value, slope, 4.0)) == pytest.approx(spread + 4 * U * (10 + 2 * spread))
    least = x.smooth(value, slope, 4.0, most=torch.tensor([1.0]).double())
    assert error(least) == pytest.approx(1.0 + 4 * U * 12)
    other = x.smooth(value, slope, 4.0, times=8, magnitude=torch.tensor([100.0]).double())
    assert error(other) == pytest.approx(spread + 8 * U * (100 + 2 * spread))
    assert error(exactly(2.0).smooth(value, slope, 4.0)) == pytest.approx(4 * U * 10)


def test_roots_of_what_may_be_zero_err_by_the_root_of_the_error():
    assert error(ball(0.0, 0.01).sqrt()) == pytest.approx(0.1, rel=1e-3)
    near = ball(1.0, 0.01).sqrt()
    assert error(near) == pytest.approx(0.5 * 0.01 + 2 * 0.25 * 0.98**-1.5 * 0.01**2, rel=1e-3)
    assert torch.isinf(ball(0.01, 0.01).rsqrt().rad).all()
    # 500 * 0.01 by the slope at 0.01, and 2 * 75,000 * 0.01**2 by the bend
    assert error(ball(0.01, 0.01).rsqrt(at_least=0.01)) == pytest.approx(20, rel=1e-3)


def test_either_of_two_formulas_may_be_used_so_both_roundings_count():
    first = ball(1.0, 0.5)
    found = either(first, lambda: ball(1.0, 0.125), count=3)

    assert error(found) == pytest.approx(0.5 + 0.125 + 16 * 3 * U * 0.5)


def test_samples_sharpen_an_error_whose_parts_cancel():
    """x − x is zero in every evaluation; radii alone do not know that the two are the same."""
    torch.manual_seed(0)
    unit = Unit.of(torch.float64, Sampler(64))
    x = Ball(torch.ones(3, dtype=torch.float64), torch.full((3,), 0.01, dtype=torch.float64), unit)
    blunt = ball(1.0, 0.01, Unit.of(torch.float64, Sampler(0)))

    assert (blunt - blunt).rad.item() == pytest.approx(0.02)
    assert bool(((x - x).rad < 1e-14).all())
    assert bool(((x + x).rad >= 0.02).all())


SAMPLED = Unit.of(torch.float64, Sampler(64))


def _of_ones(*errors, **parts):
    return Ball(torch.ones(len(errors)).double(), torch.tensor(errors).double(), SAMPLED, **parts)


def test_all_of_an_error_is_fresh_only_where_no_part_of_it_is_given():
    linear = torch.full((64, 2), 0.001).double()
    given = _of_ones(0.5, 0.5, dev=linear)
    fresh = _of_ones(0.5, 0.5, fresh=torch.full((2,), 0.001).double())

    assert torch.equal(given.dev, linear)
    assert given.rad.tolist() == pytest.approx([0.004, 0.004])
    assert bool((fresh.rad < 0.05).all())
    assert bool((_of_ones(0.5, 0.5).rad > 0.4).all())


def test_samples_that_overflow_are_drawn_anew_from_the_error_that_is_known():
    kept = torch.full((64,), 0.001).double()
    x = _of_ones(0.5, 0.5, dev=torch.stack([kept * torch.inf, kept], dim=1))

    assert x.rad.tolist() == pytest.approx([0.5, 0.004])
    assert torch.equal(x.dev[:, 1], kept)
    assert bool(((x - x).rad < 1e-14).all())
