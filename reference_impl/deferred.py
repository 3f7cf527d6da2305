"""Modules that get memory and values after they were wrapped; before, they are on the meta device."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from .errors import ReplicaError

__all__ = ["materialise", "own_device"]


def own_device() -> torch.device:
    """This rank's device: the accelerator that is current, or with gloo alone the CPU."""
    backends = {one.rpartition(":")[2] for one in dist.get_backend().split(",")}
    found = None if backends == {"gloo"} else torch.accelerator.current_accelerator()
    if found is None:
        return torch.device("cpu")
    return torch.device(found.type, torch.accelerator.current_device_index())


def materialise(module: nn.Module, *, device: torch.device) -> None:
    """Give memory to everything of `module` that is on the meta device; each part initialises its own.

    As with ``torch.nn.Module.to_empty``, parameters that parts had in common are separate afterwards.

    Raises:
        ReplicaError: A part has no ``reset_parameters()``.
    """
    for path, part in module.named_modules():
        if any(t.is_meta for t in (*part.parameters(recurse=False), *part.buffers(recurse=False))):
            reset = getattr(part, "reset_parameters", None)
            if reset is None:
                raise ReplicaError(
                    f"{path or 'the module'} is on the meta device and has no reset_parameters()"
                )
            part.to_empty(device=device, recurse=False)
            with torch.no_grad():
                reset()
