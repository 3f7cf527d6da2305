"""The widest dtype of a device."""

import torch
from pipeconform.reference_impl import widest


def test_sums_are_made_in_float64_where_there_is_float64():
    zero = widest.zero_on(torch.device("cpu"))
    assert (zero.dtype, zero.item(), zero.shape) == (torch.float64, 0.0, ())


def test_without_float64_they_are_made_in_float32(monkeypatch):
    """As devices say it: with a TypeError."""
    zeros = torch.zeros

    def narrow(*size, dtype, device):
        if dtype is torch.float64:
            raise TypeError(
                "Cannot convert a tensor to float64 dtype as this device does not support float64"
            )
        return zeros(*size, dtype=dtype, device=device)

    monkeypatch.setattr(widest.torch, "zeros", narrow)
    assert widest.zero_on(torch.device("cpu")).dtype == torch.float32
