from dataclasses import replace

import pytest
import torch

from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.judge.evidence import Evidence, Numbers
from pipeconform.observe.array import Array
from pipeconform.observe.observation import Reference, StepExpected
from tests.case.examples import small_case


def _numbers(asked, *, thorough, bound=1.0):
    """A comparison in a computation whose largest number is 1, and the list of bounds requested from the oracle."""
    ones = {0: {"weight": Array.of(torch.ones(2, dtype=torch.float64))}}
    limits = {0: {"weight": Array.of(torch.full((2,), bound, dtype=torch.float64))}}

    def bounded(level):
        asked.append(level)
        return Reference(steps=(StepExpected(step=0, gradient_bounds=limits),))

    evidence = Evidence(
        case=small_case(),
        capabilities=TorchPipelining().describe().capabilities,
        shown=(),
        expected=Reference(steps=(StepExpected(step=0, gradients=ones),)),
        bounded=bounded,
        thorough=thorough,
    )
    return Numbers(evidence=evidence)


def _differs(numbers, difference):
    expected = torch.ones(2, dtype=torch.float64)
    actual = expected + torch.tensor([0.0, difference], dtype=torch.float64)
    return numbers.differs(
        Array.of(expected),
        Array.of(actual),
        lambda reference: reference.steps[0].gradient_bounds[0]["weight"],
    )


def test_a_thorough_comparison_holds_an_enormous_difference_against_its_bound():
    """However far off a value is, the bound decides if a verdict depends on it."""
    asked = []

    assert _differs(_numbers(asked, thorough=True), 0.5) is None
    assert asked == ["reassociated"]


def test_a_quick_comparison_takes_an_enormous_difference_for_one_and_asks_nobody():
    """Half a unit where numbers reach one needs no error analysis to choose among candidates."""
    asked = []

    assert _differs(_numbers(asked, thorough=False), 0.5).kind == "value"
    assert asked == []


def test_a_quick_comparison_holds_a_small_difference_against_its_bound():
    """What rounding might explain is judged as thoroughly as ever."""
    asked = []

    assert _differs(_numbers(asked, thorough=False, bound=0.0), 1e-12).kind == "value"
    assert asked == ["reassociated", "running"]


def test_a_value_that_is_on_either_side_is_compared_once():
    """One that is missing, or that nobody expected, is no value that was not looked at."""
    one = Array.of(torch.ones(2, dtype=torch.float64))
    for expected, actual, number in ((one, one, 1), (one, None, 1), (None, one, 1), (None, None, 0)):
        numbers = _numbers([], thorough=True)
        mismatch = numbers.differs(expected, actual, lambda reference: None)

        assert numbers.evidence.gauge.compared == number
        assert (mismatch is None) is (expected is actual)


def test_a_value_whose_bound_is_not_known_differs_where_bits_do():
    numbers = _numbers([], thorough=True)
    ones, twos = (Array.of(torch.full((2,), value, dtype=torch.float64)) for value in (1.0, 2.0))

    assert numbers.differs(ones, twos, lambda reference: None).kind == "value"
    assert numbers.evidence.gauge.worst is None


def test_another_dtype_or_shape_needs_no_bound():
    asked = []
    numbers = _numbers(asked, thorough=True)
    ones = torch.ones(2, dtype=torch.float64)
    for other, kind in ((ones.float(), "dtype"), (ones[:1], "shape")):
        mismatch = numbers.differs(Array.of(ones), Array.of(other), lambda reference: None)
        assert mismatch.kind == kind

    assert asked == []


def test_of_accepted_values_the_closest_to_its_bound_is_remembered_and_of_others_none():
    numbers = _numbers([], thorough=True, bound=1.0)
    for difference, worst in ((0.25, 0.25), (0.75, 0.75), (0.5, 0.75), (1.5, 0.75)):
        _differs(numbers, difference)

        assert numbers.evidence.gauge.worst == worst


@pytest.mark.parametrize(("largest", "overflows"), [(1e17, False), (1e20, True), (float("inf"), False)])
def test_what_a_training_that_diverges_computes_is_not_judged(largest, overflows):
    """Whether a sum of such numbers overflows depends on the order of its terms; infinities alone say nothing."""
    values = torch.tensor([1.0, largest])
    numbers = _numbers([], thorough=True, bound=0.0)
    steps = (StepExpected(step=0, gradients={0: {"weight": Array.of(values)}}),)
    evidence = replace(numbers.evidence, expected=Reference(steps=steps))

    found = Numbers(evidence=evidence).differs(
        Array.of(torch.tensor([1.0])),
        Array.of(torch.tensor([float("inf")])),
        lambda _: Array.of(torch.zeros(1, dtype=torch.float64)),
    )

    assert evidence.overflows == overflows
    assert (found is None) == overflows


def test_a_value_that_is_missing_is_missed_in_a_training_that_diverges():
    steps = (StepExpected(step=0, gradients={0: {"weight": Array.of(torch.tensor([1e20]))}}),)
    evidence = replace(_numbers([], thorough=True).evidence, expected=Reference(steps=steps))

    assert Numbers(evidence=evidence).differs(Array.of(torch.ones(1)), None, lambda _: None).kind == "missing"


@pytest.mark.parametrize(("bound", "compared"), [(0.75, 1), (1.0, 0), (float("inf"), 0)])
def test_what_zeros_would_have_passed_does_not_count_as_compared(bound, compared):
    numbers = _numbers([], thorough=True, bound=bound)

    assert _differs(numbers, 0.5) is None
    assert numbers.evidence.gauge.compared == compared
