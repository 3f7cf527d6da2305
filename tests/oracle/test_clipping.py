"""The oracle clips as torch does."""

import math

import pytest
import torch
from torch import nn

from pipeconform.bounds.running_error import RunningError
from pipeconform.case.case import Clip
from pipeconform.oracle.clipping import clip


def _parameters(*, without=False):
    generator = torch.Generator().manual_seed(0)
    found = [nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in ((3, 2), (4,), (1,))]
    for one in found[without:]:
        one.grad = torch.randn(one.shape, generator=generator, dtype=torch.float64)
    return found


@pytest.mark.parametrize(("norm", "order"), [("two", 2.0), ("maximum", math.inf)])
@pytest.mark.parametrize("limit", [0.0625, 100.0])
@pytest.mark.parametrize("without", [False, True])
def test_gradients_are_those_of_clip_grad_norm(norm, order, limit, without):
    mine, right = _parameters(without=without), _parameters(without=without)
    torch.nn.utils.clip_grad_norm_(right, limit, order)

    with RunningError():
        clip(mine, Clip(limit=limit, norm=norm))

    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_without_any_gradient_nothing_happens():
    parameter = nn.Parameter(torch.ones(2))

    clip([parameter], Clip(limit=1.0))

    assert parameter.grad is None
