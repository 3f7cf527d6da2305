from __future__ import annotations

import pytest
import torch
from torch import nn

from pipeconform import adapter
from pipeconform.contract.helpers import optimizer_of


@pytest.mark.parametrize(
    "offered",
    ["Pipeline", "MeasuresGradients", "ScalesLosses", "DeclaresTable", "OffersStages", "KnowsBoundaries"],
)
def test_a_bystander_has_the_methods_of_every_feature(offered):
    assert isinstance(adapter.Bystander(), getattr(adapter, offered))


def test_what_a_bystander_says_is_that_it_has_nothing():
    one = adapter.Bystander()
    assert [one.table(), one.gradient_norm(), one.loss_scale()] == [None, None, None]
    assert (one.open_stages(None), one.boundaries()) == ({}, ())


class _Other(torch.Tensor):
    """A tensor of another kind, as DTensors are."""


@pytest.mark.parametrize("spec", [adapter.SgdStep(lr=0.5), adapter.AdamStep(lr=0.5)])
def test_tensors_of_two_kinds_are_not_updated_in_one_operation(spec):
    plain, other = (nn.Parameter(torch.ones(2)) for _ in range(2))
    odd = nn.Parameter(torch.ones(2).as_subclass(_Other))
    assert optimizer_of([plain, other], spec).defaults["foreach"] is None
    assert optimizer_of([plain, odd], spec).defaults["foreach"] is False
