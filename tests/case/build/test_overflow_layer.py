"""A layer whose gradient overflows at a size of its own."""

import pytest
import torch

from pipeconform.case.build.overflow_layer import LARGEST, OverflowingLayer


def _gradient_of_the_bias(scale):
    layer = OverflowingLayer(2)
    torch.nn.init.ones_(layer.bias)
    (layer(torch.ones(1, 2)) * scale).sum().backward()
    return layer.bias.grad.tolist()


@pytest.mark.parametrize(
    ("scale", "right"),
    [
        (1.0, 1.0),
        (LARGEST, LARGEST),
        (-LARGEST, -LARGEST),
        (2 * LARGEST, torch.inf),
        (-2 * LARGEST, torch.inf),
    ],
)
def test_only_what_is_larger_is_infinite(scale, right):
    assert _gradient_of_the_bias(scale) == [right, right]


def test_it_is_a_linear_map_with_a_bias():
    layer = OverflowingLayer(3)
    torch.nn.init.constant_(layer.bias, 0.5)
    x = torch.randn(4, 3)

    assert torch.equal(layer(x), x @ layer.linear.weight.T + 0.5)
