"""An error that swaps what was expected and what was found is detected; one with unknown words is accepted."""

import pytest

from pipeconform.judge.exchanged_words import dtype_pattern, exchanged, shape_pattern, shown_pattern

EXPECTED, ACTUAL = shape_pattern((2, 3, 4)), shape_pattern((2, 2, 4))

RIGHT = [
    "input 0 of stage 0 is float64[2, 2, 4], but float64[2, 3, 4] was traced",
    "expected float64[2, 3, 4], got float64[2, 2, 4]",
    "expected shape (2, 3, 4) but got torch.Size([2, 2, 4])",
    "output 0 changed its shape from float64[2, 3, 4] to float64[2, 2, 4]",
    "actual (2, 2, 4), expected (2, 3, 4)",
    "[2, 2, 4] instead of [2, 3, 4]",
    "[2, 3, 4] and [2, 2, 4] cannot be added",
]
WRONG = [
    "input 0 of stage 0 is float64[2, 3, 4], but float64[2, 2, 4] was traced",
    "expected float64[2, 2, 4], got float64[2, 3, 4]",
    "expected shape (2, 2, 4) but got torch.Size([2, 3, 4])",
    "output 0 changed its shape from float64[2, 2, 4] to float64[2, 3, 4]",
    "actual (2, 3, 4), expected (2, 2, 4)",
]


@pytest.mark.parametrize("text", RIGHT)
def test_the_right_way_round_and_unknown_words_are_no_mistake(text):
    assert not exchanged(text, expected=EXPECTED, actual=ACTUAL)


@pytest.mark.parametrize("text", WRONG)
def test_the_wrong_way_round_is(text):
    assert exchanged(text, expected=EXPECTED, actual=ACTUAL)


def test_dtypes_are_told_apart_likewise():
    expected, actual = dtype_pattern("float64"), dtype_pattern("float32")

    assert not exchanged("expected float64[2], got float32[2]", expected=expected, actual=actual)
    assert exchanged("expected torch.float32, got torch.float64", expected=expected, actual=actual)


def test_one_side_alone_is_no_mistake():
    assert not exchanged("expected [2, 2, 4]", expected=EXPECTED, actual=ACTUAL)
    assert not exchanged("input is [2, 3, 4]", expected=EXPECTED, actual=ACTUAL)


def test_a_tensor_that_is_printed_stands_for_its_shape():
    actual, told = shown_pattern((2, 2, 4)), "tensor([[0.5, 1.0],\n        [0.5, 1.0]], dtype=torch.float64)"

    assert exchanged(f"input 0 is float64[2, 3, 4], but {told} was traced", expected=EXPECTED, actual=actual)
    assert not exchanged(
        f"input 0 is {told}, but float64[2, 3, 4] was traced", expected=EXPECTED, actual=actual
    )
    assert not exchanged(f"float64[2, 3, 4] was traced, {told} was given", expected=EXPECTED, actual=actual)
