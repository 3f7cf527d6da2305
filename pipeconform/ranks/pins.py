"""What is set on a rank that uses a device, so that the same computation gives the same bits; nothing on the CPU.

Everything is set to what the device computes most exactly with. The values are reported with the environment
variables that a rank sees, and stand in the result.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["WORKSPACE", "pin"]

WORKSPACE: Mapping[str, str] = MappingProxyType({"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
"""Without it cuBLAS may choose another algorithm in every stream."""

# by the name below torch; releases without a setting have nothing to set
_SETTINGS: Mapping[str, object] = MappingProxyType(
    {
        "backends.cuda.matmul.allow_tf32": False,
        "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": False,
        "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": False,
        "backends.cudnn.allow_tf32": False,
        "backends.cudnn.benchmark": False,
        "backends.cudnn.deterministic": True,
        "utils.deterministic.fill_uninitialized_memory": False,
    }
)


def pin(device_type: str) -> dict[str, str]:
    """Pin this process's settings, and return them as they are afterwards; empty for the CPU."""
    if device_type == "cpu":
        return {}
    import torch

    # only a warning: an implementation may use what has no deterministic kernel, and is judged by LIF-5
    if "torch._inductor" in sys.modules:
        torch.use_deterministic_algorithms(True, warn_only=True)
    else:  # the same without importing the compiler, which takes each new process seconds and few use
        os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1"
        torch.set_deterministic_debug_mode("warn")
    found = {"torch.use_deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled())}
    for name, value in _SETTINGS.items():
        *path, last = name.split(".")
        owner: Any = torch
        for part in path:
            owner = getattr(owner, part, None)
        if owner is None or not hasattr(owner, last):
            continue
        setattr(owner, last, value)
        found[f"torch.{name}"] = str(getattr(owner, last))
    return found
