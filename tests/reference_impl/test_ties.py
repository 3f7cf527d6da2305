"""Parameters that stages hold together: what sharing them inside a rank does, and what it leaves alone."""

import torch
from pipeconform.reference_impl.front_end import share
from torch import nn

from pipeconform.adapter import OptimizerStep, SgdStep, step_modules


def _stages():
    return {0: nn.Sequential(nn.Linear(2, 2)), 2: nn.Sequential(nn.Linear(2, 2)), 3: nn.Linear(2, 2)}


def test_stages_of_a_rank_hold_one_parameter():
    stages = _stages()

    share([{0: "0.weight", 1: "elsewhere.weight", 3: "weight"}], stages)

    assert stages[3].weight is stages[0][0].weight
    assert stages[2][0].weight is not stages[0][0].weight
    assert stages[3].bias is not stages[0][0].bias


def test_both_uses_add_to_one_gradient_and_an_optimizer_moves_it_once():
    stages = _stages()
    share([{0: "0.weight", 3: "weight"}], stages)
    step = step_modules(stages, SgdStep(lr=1.0))
    before = stages[3].weight.detach().clone()
    x = torch.ones(1, 2)

    (stages[0](x).sum() + stages[3](2 * x).sum()).backward()
    step(OptimizerStep())

    assert torch.equal(stages[0][0].weight.grad, torch.full((2, 2), 3.0))
    assert torch.equal(stages[3].weight, before - 3.0)
