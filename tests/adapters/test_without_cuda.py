"""What stands for torch inside an engine's module is torch, but for the calls that need CUDA."""

import torch

from pipeconform.adapters.without_cuda import TorchWithoutCuda

SEEN = TorchWithoutCuda("torch")


def test_what_is_meant_for_cuda_lands_on_the_cpu():
    assert SEEN.zeros(2, 3, dtype=torch.int, device="cuda").device == torch.device("cpu")
    assert SEEN.cuda.current_device() == "cpu"
    assert SEEN.cuda.synchronize() is None


def test_everything_else_is_torch():
    assert SEEN.zeros([], device="meta").device == torch.device("meta")
    assert SEEN.Tensor is torch.Tensor
    assert SEEN.distributed.is_available() == torch.distributed.is_available()
    assert SEEN.cuda is not torch.cuda
