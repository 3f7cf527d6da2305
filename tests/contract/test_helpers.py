from __future__ import annotations

import pytest

from pipeconform import adapter


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
