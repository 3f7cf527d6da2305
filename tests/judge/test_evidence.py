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
