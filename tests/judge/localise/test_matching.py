"""Forwards are assigned to microbatches by what they received."""

import pytest
import torch

from pipeconform.judge.localise.matching import by_microbatch
from pipeconform.observe.observation import Forward, Structure


def _inputs(number):
    return (Structure.of(torch.tensor([float(number)])),)


def _forwards(*numbers):
    return [Forward(stage=1, grad_enabled=True, inputs=_inputs(n), output=_inputs(n)[0]) for n in numbers]


RIGHTS = [_inputs(0), _inputs(1), _inputs(2)]


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        pytest.param((0, 1, 2), [[0], [1], [2]], id="right"),
        pytest.param((2, 0, 1), [[1], [2], [0]], id="in another order"),
        pytest.param((7, 8, 9), [[0], [1], [2]], id="all wrong: by their order"),
        pytest.param((0, 0, 2), [[0], [1], [2]], id="the second received the first's"),
        pytest.param((0, 0, 1, 2), [[0, 1], [2], [3]], id="one runs twice"),
        pytest.param((0, 0, 7, 2), [[0, 1], [2], [3]], id="one runs twice, and one is wrong"),
        pytest.param((7, 0, 1, 2), [[1], [2], [3]], id="a dry run on other values"),
        pytest.param((7, 0, 8, 2), [[1], [2], [3]], id="a dry run, and a wrong one"),
        pytest.param((0, 2), [[0], [], [1]], id="one is missing"),
        pytest.param((), [[], [], []], id="none ran"),
    ],
)
def test_forwards_are_given_to_microbatches(received, expected):
    assert by_microbatch(_forwards(*received), [RIGHTS]) == expected


def test_either_of_two_legitimate_inputs_is_right():
    other = [_inputs(10), _inputs(11), _inputs(12)]

    assert by_microbatch(_forwards(1, 10, 2), [RIGHTS, other]) == [[1], [0], [2]]
