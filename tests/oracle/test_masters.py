"""The oracle's float32 copies, beside numbers worked out by hand."""

import pytest
import torch
from torch import nn

from pipeconform.case.case import Scaling, Sgd
from pipeconform.oracle.masters import Masters


def _one(value=1.0, *, dtype=torch.bfloat16):
    return nn.Parameter(torch.tensor([value], dtype=dtype))


def test_updates_below_half_a_distance_add_up():
    """Between 1 and 2 bfloat16 numbers are 1/128 apart: four updates of 1/512 make one."""
    parameter = _one()
    masters = Masters([parameter], Sgd(lr=2.0**-9, masters=True))
    seen = []
    for _ in range(4):
        parameter.grad = torch.tensor([-1.0], dtype=torch.bfloat16)
        masters.step(finite=True)
        seen.append(parameter.item())

    assert seen == [1.0, 1.0, 1.0078125, 1.0078125]


def test_a_parameter_that_is_loaded_is_where_the_next_update_starts():
    parameter = _one()
    masters = Masters([parameter], Sgd(lr=1.0, masters=True))
    with torch.no_grad():
        parameter.fill_(4.0)
    masters.load()
    parameter.grad = torch.tensor([1.0], dtype=torch.bfloat16)
    masters.step(finite=True)

    assert parameter.item() == 3.0


def test_momentum_is_that_of_torch():
    parameter = _one(8.0)
    masters = Masters([parameter], Sgd(lr=1.0, momentum=0.5, masters=True))
    for _ in range(2):
        parameter.grad = torch.tensor([1.0], dtype=torch.bfloat16)
        masters.step(finite=True)

    assert parameter.item() == 8.0 - 1.0 - 1.5


def test_a_step_with_a_gradient_that_is_not_finite_only_lowers_the_scale():
    parameter = _one(dtype=torch.float16)
    scaling = Scaling(initial=8.0, backoff=0.25)
    masters = Masters([parameter], Sgd(lr=1.0, masters=True, scaling=scaling))
    parameter.grad = torch.tensor([torch.inf], dtype=torch.float16)
    masters.step(finite=False)

    assert (parameter.item(), masters.scale) == (1.0, 2.0)


def test_gradients_are_divided_by_the_scale():
    parameter = _one(dtype=torch.float16)
    masters = Masters([parameter], Sgd(lr=1.0, masters=True, scaling=Scaling(initial=8.0, backoff=0.25)))
    parameter.grad = torch.tensor([4.0], dtype=torch.float16)
    masters.step(finite=True)

    assert (parameter.item(), masters.scale) == (0.5, 8.0)


@pytest.mark.parametrize("gradient", [None])
def test_a_parameter_without_a_gradient_stays(gradient):
    parameter = _one()
    masters = Masters([parameter], Sgd(lr=1.0, masters=True))
    parameter.grad = gradient
    masters.step(finite=True)

    assert parameter.item() == 1.0
