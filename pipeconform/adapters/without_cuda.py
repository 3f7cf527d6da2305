"""Runs engines that call the CUDA runtime wherever the tensors are."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import torch

__all__ = ["TorchWithoutCuda"]


class TorchWithoutCuda(ModuleType):
    """Replaces ``torch`` in an engine's module if the run is on the CPU: calls about CUDA mean the CPU.

    Only that module sees it: the model runs with the real torch.
    """

    cuda = SimpleNamespace(current_device=lambda: "cpu", synchronize=lambda: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: Any, device: Any = None, **options: Any) -> torch.Tensor:
        """``torch.zeros``, on the CPU if CUDA was meant."""
        return torch.zeros(*size, device="cpu" if device == "cuda" else device, **options)
