"""Runs engines that call the CUDA runtime wherever the tensors are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

__all__ = ["TorchWithoutCuda", "run_on", "types_of_cuda"]


class TorchWithoutCuda(ModuleType):
    """Replaces ``torch`` in an engine's module if the run is on the CPU: calls about CUDA mean the CPU.

    Only that module sees it: the model runs with the real torch.
    """

    cuda = SimpleNamespace(current_device=lambda: "cpu", synchronize=lambda: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: Any, device: Any = None, **options: Any) -> torch.Tensor:
        """``torch.zeros``, on the CPU if CUDA was meant."""
        return torch.zeros(*size, device=_meant(device), **options)

    def empty(self, *size: Any, device: Any = None, **options: Any) -> torch.Tensor:
        """``torch.empty``, on the CPU if CUDA was meant."""
        return torch.empty(*size, device=_meant(device), **options)

    def tensor(self, data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
        """``torch.tensor``, on the CPU if CUDA was meant."""
        return torch.tensor(data, device=_meant(device), **options)


def _meant(device: Any) -> Any:
    return "cpu" if device == "cuda" else device


def run_on(device: torch.device, *modules: Any) -> None:
    """Have an engine's modules make their tensors on `device`: by themselves they ask the machine."""
    for module in modules:
        module.torch = torch if device.type == "cuda" else TorchWithoutCuda("torch")


@contextlib.contextmanager
def types_of_cuda() -> Iterator[None]:
    """Have tensors of the CPU name types of CUDA, such as ``torch.cuda.FloatTensor``, for code that asks by name.

    They stay where they are if code moves them there.
    """
    torch.Tensor.type = _type_on_cuda  # type: ignore[assignment,method-assign]
    torch.Tensor.cuda = _moved_nowhere  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        del torch.Tensor.type, torch.Tensor.cuda  # those of its base class are seen again


def _type_on_cuda(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
    found = super(torch.Tensor, tensor).type(*args, **options)
    return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) else found


def _moved_nowhere(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    return tensor
