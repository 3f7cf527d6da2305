"""What stands for torch inside an engine's module is torch, but for the calls that need CUDA."""

import pytest
import torch
from torch import nn

from pipeconform.adapters.without_cuda import TorchWithoutCuda, types_of_cuda

SEEN = TorchWithoutCuda("torch")


def test_what_is_meant_for_cuda_lands_on_the_cpu():
    assert SEEN.zeros(2, 3, dtype=torch.int, device="cuda").device == torch.device("cpu")
    assert SEEN.tensor([1.0], device="cuda").device == torch.device("cpu")
    assert SEEN.empty(2, device="cuda").device == torch.device("cpu")
    assert SEEN.cuda.current_device() == "cpu"
    assert SEEN.cuda.synchronize() is None


def test_everything_else_is_torch():
    assert SEEN.zeros([], device="meta").device == torch.device("meta")
    assert SEEN.Tensor is torch.Tensor
    assert SEEN.distributed.is_available() == torch.distributed.is_available()
    assert SEEN.cuda is not torch.cuda


def test_tensors_of_the_cpu_name_types_of_cuda_for_a_while():
    value = torch.ones(1)
    with types_of_cuda():
        assert value.type() == "torch.cuda.FloatTensor"
        assert nn.Parameter(value.bfloat16()).type() == "torch.cuda.BFloat16Tensor"
        assert value.type(torch.float64).dtype is torch.float64
    assert value.type() == "torch.FloatTensor"
    assert "type" not in vars(torch.Tensor)


def test_the_names_of_types_are_right_again_after_an_error():
    with pytest.raises(ZeroDivisionError), types_of_cuda():
        raise ZeroDivisionError
    assert torch.ones(1).type() == "torch.FloatTensor"
