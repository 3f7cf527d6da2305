"""A layer that keeps its inputs says when one of them has changed."""

import torch

from pipeconform.case.build.keeping_layer import KeepingLayer


def test_nothing_has_changed_where_every_input_is_new():
    layer = KeepingLayer(3)
    for _ in range(3):
        layer(torch.randn(2, 3))

    assert not bool(layer.kept_inputs_changed)


def test_an_input_that_is_written_to_later_is_told_from_the_next_call_on():
    layer, received = KeepingLayer(3), torch.randn(2, 3)
    layer(received)
    received.add_(1.0)
    assert not bool(layer.kept_inputs_changed)

    layer(torch.randn(2, 3))
    assert bool(layer.kept_inputs_changed)

    received.sub_(1.0)  # whatever happens later
    layer(torch.randn(2, 3))
    assert bool(layer.kept_inputs_changed)


def test_nan_in_the_memory_of_a_dry_run_is_no_change():
    layer = KeepingLayer(2)
    layer(torch.full((1, 2), torch.nan))
    layer(torch.ones(1, 2))

    assert not bool(layer.kept_inputs_changed)


def test_a_dry_run_without_values_is_not_kept():
    layer = KeepingLayer(2)
    state = {name: value.to("meta") for name, value in layer.state_dict().items()}
    for _ in range(2):
        torch.func.functional_call(layer, state, (torch.ones(1, 2, device="meta"),))
    layer(torch.ones(1, 2))

    assert not bool(layer.kept_inputs_changed)


def test_memory_that_was_given_back_is_a_change_and_not_read():
    layer, received = KeepingLayer(2), torch.ones(1, 2)
    layer(received)
    received.untyped_storage().resize_(0)
    layer(torch.ones(1, 2))

    assert bool(layer.kept_inputs_changed)


def test_it_maps_as_a_linear_map_does_and_hands_gradients_on():
    layer, x = KeepingLayer(3), torch.randn(2, 3, requires_grad=True)
    y = layer(x)
    y.sum().backward()

    assert torch.equal(y, layer.linear(x))
    assert x.grad is not None
