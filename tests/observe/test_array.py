"""A tensor's value as plain data: what is read in place, and what takes the longer way."""

import pytest
import torch

from pipeconform.observe.array import Array


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize(
    "view", ["whole", "turned", "every other", "expanded", "scalar", "empty", "below zero"]
)
def test_what_is_read_in_place_is_recorded_like_anything_else(monkeypatch, dtype, view):
    values = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 5.0]]).to(getattr(torch, dtype))
    tensor = {
        "whole": values,
        "turned": values.T,
        "every other": values[:, ::2],
        "expanded": values[:, :1].expand(2, 4),
        "scalar": values[1, 2],
        "empty": values[:0],
        "below zero": values * -1 if dtype.startswith("float") else values,
    }[view]
    in_place = Array.of(tensor)
    monkeypatch.setattr("pipeconform.observe.array._is_plain", lambda tensor, dtype: False)

    assert in_place == Array.of(tensor)
    assert in_place.tensor().equal(tensor)


def test_the_sign_of_a_zero_makes_no_difference():
    assert Array.of(torch.tensor([-0.0, 1.0])) == Array.of(torch.tensor([0.0, 1.0]))


def test_a_view_that_negates_is_recorded_with_its_value():
    negated = torch.tensor([1.0 + 2.0j]).conj().imag  # torch sets a bit and computes nothing
    assert negated.is_neg()

    assert Array.of(negated).tensor().tolist() == [-2.0]


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2, 3), torch.ones(2, 3).T, torch.ones(3).bfloat16(), torch.ones(2, dtype=torch.complex64)],
    ids=["whole", "turned", "bfloat16", "complex"],
)
def test_what_was_recorded_can_be_resized_as_before_and_so_can_what_is_made_of_a_record(tensor):
    """`Tensor.numpy` would fix its size: engines free the memory of what they have sent by resizing it."""
    made = Array.of(tensor).tensor()

    assert tensor.untyped_storage().resizable()
    assert made.untyped_storage().resizable()
