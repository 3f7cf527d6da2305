import math
import subprocess
import sys

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeconform.bounds.numerics import Mismatch, compare, enormous, magnitude, ratio, tells_from_zero
from pipeconform.errors import HarnessError
from pipeconform.observe.array import Array

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128]


def array(values, dtype=torch.float32):
    return Array.of(torch.tensor(values, dtype=dtype))


def limit(*values):
    return array(list(values), torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_values_pass_and_one_other_element_is_found(dtype):
    """An array equals itself, and a change of one element is reported at its index."""
    values = torch.ones(3, 4, dtype=dtype)
    changed = values.clone()
    changed[1, 2] = 0

    assert compare(Array.of(values), Array.of(values.clone())) is None
    found = compare(Array.of(values), Array.of(changed))
    assert (found.kind, found.index, found.differing, found.total) == ("value", (1, 2), 1, 12)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("start", [0.0, 1.0, -1.0, -0.0, 2.0], ids=str)
def test_ulps_count_the_steps_from_number_to_number(dtype, start):
    """The distance in ulp is the number of ``nextafter`` steps, through zero and across binades too."""
    a = b = torch.tensor(start, dtype=dtype)
    for _ in range(3):
        b = torch.nextafter(b, torch.tensor(-math.inf, dtype=dtype))

    assert compare(Array.of(a), Array.of(b)).ulps == 3


def test_ulps_of_integers_bools_and_complex_numbers_are_sensible():
    """Integers count units (beyond int64 too), bools one, complex numbers the worse of both parts."""
    high, low = torch.iinfo(torch.int64).max, torch.iinfo(torch.int64).min

    assert compare(array(high, torch.int64), array(low, torch.int64)).ulps == 2**64 - 1
    assert compare(array(True, torch.bool), array(False, torch.bool)).ulps == 1
    one = 1 + 2**-23
    assert compare(array(1 + 1j, torch.complex64), array(one + 1j, torch.complex64)).ulps == 1


def test_nan_equals_nan_of_any_payload_and_zero_equals_zero_of_either_sign():
    """NaN payloads and signs of zero are not differences; a NaN in place of a number is one."""
    quiet, other = (
        torch.tensor(bits, dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001)
    )

    assert Array.of(quiet) != Array.of(other)
    assert compare(Array.of(quiet), Array.of(other)) is None
    assert compare(array([0.0, 1.0]), array([-0.0, 1.0])) is None
    found = compare(array([1.0, 2.0]), array([1.0, math.nan]))
    assert (found.index, found.ulps, found.relative, found.actual) == ((1,), None, None, "nan")


@pytest.mark.parametrize(
    ("expected", "actual", "passes"),
    [
        (1.0, 1.25, True),
        (1.0, 1.5, False),
        (1.0, math.nan, False),
        (math.nan, math.nan, True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (math.inf, 1e30, False),
        (1.0, math.inf, False),
    ],
)
def test_a_bound_admits_differences_up_to_itself_only(expected, actual, passes):
    """|expected − actual| <= bound; NaN and infinities only where expected."""
    assert (compare(array([expected]), array([actual]), bound=limit(0.25)) is None) == passes
    assert (ratio(array([expected]), array([actual]), limit(0.25)) <= 1) == passes


@pytest.mark.parametrize(
    ("values", "bounds", "tells"),
    [
        ([1.0, -2.0], [1.0, 1.5], True),
        ([1.0, -2.0], [1.0, 2.0], False),
        ([0.0, 0.0], [math.inf, 1e9], True),
        ([0.0, 0.0], [math.inf, math.inf], False),
        ([1.0, math.inf], [math.inf, math.inf], True),
        ([], [], True),
    ],
)
def test_a_bound_tells_a_value_from_zeros_where_it_is_smaller(values, bounds, tells):
    """Of zeros, any bound that is finite says something; infinities are compared as such."""
    assert tells_from_zero(array(values), array(bounds)) is tells


def test_an_infinite_or_undefined_bound_admits_no_nan_and_a_nan_bound_nothing():
    """A useless bound passes no NaN for a number; a bound of NaN passes only equal values."""
    assert compare(array([1.0]), array([math.nan]), bound=limit(math.inf)) is not None
    assert compare(array([1.0]), array([2.0]), bound=limit(math.nan)) is not None
    assert compare(array([1.0]), array([1.0]), bound=limit(math.nan)) is None


def test_a_bounded_mismatch_reports_the_first_excess_and_the_worst_ratio():
    """Elements within their bound do not count; the worst ratio is over all."""
    found = compare(array([1.0, 2.0, 4.0]), array([1.5, 2.5, 8.0]), bound=limit(1, 0.25, 0.5))

    assert (found.index, found.differing, found.total, found.worst) == ((1,), 2, 3, 8.0)


def test_the_ratio_of_a_passing_array_says_how_close_it_came():
    """The worst share of the bound that was used; nothing used gives 0, something where 0 is allowed ∞."""
    assert ratio(array([1.0, 2.0]), array([1.25, 2.25]), limit(1, 0.5)) == 0.5
    assert ratio(array([1.0]), array([1.0]), limit(0)) == 0
    assert ratio(array([1.0, 3.0]), array([1.5, 3.0]), limit(0, 0)) == math.inf
    assert ratio(array([1.0]), array([1.0], torch.float64), limit(1)) == math.inf


def test_kinds_other_than_value_name_what_differs():
    """dtype before shape; a value on one side only is missing or unexpected."""
    one, two = array([1.0]), array([1.0, 2.0])

    assert compare(one, array([1.0], torch.float64)).kind == "dtype"
    assert compare(one, two).kind == "shape"
    assert compare(one, None).kind == "missing"
    assert compare(None, one).kind == "unexpected"
    assert compare(None, None) is None


def test_misuse_is_an_error_of_the_harness():
    """A bound of another shape and a dtype without arithmetic are refused by name."""
    with pytest.raises(HarnessError, match=r"\[2\].*\[1\]"):
        compare(array([1.0]), array([2.0]), bound=limit(1, 1))
    with pytest.raises(HarnessError, match="float8_e8m0fnu"):
        compare(Array("float8_e8m0fnu", (1,), b"a"), Array("float8_e8m0fnu", (1,), b"b"))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_is_compared_by_its_bits(dtype):
    found = compare(Array(dtype, (2,), b"aa"), Array(dtype, (2,), b"ab"))

    assert (found.kind, found.index) == ("value", (1,))
    assert compare(Array(dtype, (1,), b"a"), Array(dtype, (1,), b"a")) is None


SNAPSHOTS = [
    (
        compare(array([[1.0, 2.0], [3.0, 0.1]]), array([[1.0, 2.0], [3.0, 0.1 + 1e-8]])),
        "value differs at [1, 1], the first of 1 of 4\n"
        "  expected  0.1\n  actual    0.10000001\n  distance  1 ulp, 7.5e-08 of the value",
    ),
    (
        compare(array([0.0, 1.0]), array([0.5, 1.0]), bound=limit(0.125, 0)),
        "value differs at [0], the first of 1 of 2\n"
        "  expected  0.0\n  actual    0.5\n  distance  1056964608 ulp\n  bound     exceeded up to 4 times",
    ),
    (compare(array(1.0), array(math.nan)), "value differs\n  expected  1.0\n  actual    nan"),
    (
        compare(array(1.0, torch.bfloat16), array(1.0078125, torch.bfloat16)),
        "value differs\n  expected  1.0\n  actual    1.008\n  distance  1 ulp, 0.0078 of the value",
    ),
    (
        compare(array([1.0]), array([[1.0]])),
        "shape differs\n  expected  [1]\n  actual    [1, 1]",
    ),
    (
        compare(array([1.0]), array([1], torch.int32)),
        "dtype differs\n  expected  float32\n  actual    int32",
    ),
    (compare(array([1.0]), None), "missing\n  expected  Array(float32[1])\n  actual    nothing"),
]


@pytest.mark.parametrize(("found", "text"), SNAPSHOTS, ids=[text.split("\n")[0] for _, text in SNAPSHOTS])
def test_a_mismatch_describes_itself_in_aligned_lines(found, text):
    """The text is our user interface."""
    assert found.describe() == text


def test_a_mismatch_survives_json():
    """Infinite and undefined numbers included: a result file stores it."""
    found = compare(array([1.0]), array([math.inf]), bound=limit(0))

    assert msgspec.json.decode(msgspec.json.encode(found), type=Mismatch) == found


def test_empty_arrays_are_equal():
    """Nothing differs from nothing."""
    assert compare(array([]), array([]), bound=limit()) is None


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(*[st.floats(width=32)] * 2), min_size=1, max_size=6), st.floats(0, 1e30))
def test_the_judgement_is_that_of_each_element_by_itself(pairs, bound):
    """`compare` agrees with the definition, element by element."""
    expected, actual = (array(list(side)) for side in zip(*pairs, strict=True))

    def right(a, b):
        if a == b or (math.isnan(a) and math.isnan(b)):
            return True
        return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= bound

    found = compare(expected, actual, bound=limit(*[bound] * len(pairs)))

    assert (0 if found is None else found.differing) == sum(not right(a, b) for a, b in pairs)


def test_the_controller_compares_without_torch():
    """Importing and using the module loads no torch."""
    code = (
        "import sys; from pipeconform.observe.array import Array;"
        "from pipeconform.bounds.numerics import compare;"
        "assert compare(Array('float32', (1,), b'abcd'), Array('float32', (1,), b'abce'));"
        "assert 'torch' not in sys.modules"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rounding_is_never_enormous_and_a_doubled_value_of_three_digits_is(dtype):
    """A few ulp of the largest numbers are no enormous difference; in double precision, a millionth is."""
    value = array([8.0], dtype)
    near = array([8.0 * (1 + 4 * torch.finfo(dtype).eps)], dtype)

    assert not enormous(value, near, scale=8.0)
    assert not enormous(array([1e-17], dtype), array([-3e-17], dtype), scale=8.0)
    assert enormous(array([8.0], torch.float64), array([8.01], torch.float64), scale=8.0)


def test_half_of_the_digits_are_lost_from_64_roots_of_the_unit_on():
    """For float64, 64·√ε is 2**-20 of the largest number; that far is not yet enormous, one step further is."""
    zero, limit = array([0.0], torch.float64), 2.0**-20

    assert not enormous(zero, array([limit], torch.float64), scale=1.0)
    assert enormous(zero, array([math.nextafter(limit, 1)], torch.float64), scale=1.0)
    assert not enormous(zero, array([-0.0], torch.float64), scale=0.0)


def test_values_that_are_not_numbers_and_exact_types_differ_enormously_or_not_at_all():
    """NaN against a number, one count against another: no rounding explains it."""
    assert enormous(array([math.nan]), array([1.0]), scale=1.0)
    assert not enormous(array([math.nan, math.inf]), array([math.nan, math.inf]), scale=1.0)
    assert enormous(array([2], torch.int64), array([3], torch.int64), scale=1e9)


def test_the_magnitude_is_that_of_the_largest_finite_floating_point_number():
    """Integers, infinities and absent values do not count."""
    values = [None, array([-3.0, math.inf]), array([100], torch.int64), array([2.0], torch.bfloat16)]

    assert magnitude(values) == 3.0
    assert magnitude([]) == 0.0
