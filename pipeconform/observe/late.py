"""Copies of what passes through a stage on a device, read at the end of the step.

Reading a value waits for the device. A wait at every forward would order streams that the implementation forgot to
order, and hide what it uses before it is ready. A copy is made on the forward's own stream instead, behind what the
stage reads and computes there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as tree

from pipeconform.observe.observation import Forward

__all__ = ["LateForward", "copied"]


@dataclass(frozen=True, kw_only=True)
class LateForward:
    """A forward whose values have not been read."""

    stage: int
    grad_enabled: bool
    read: Callable[[], Forward]
    """Reads the copies, when they have been made."""


def copied(values: Any, *, device: torch.device) -> Callable[[], Any]:
    """Copy the tensors in nested containers; return a function that returns the copies for the then current stream."""
    copies = tree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), values)
    made = torch.Event(device=device)
    made.record()  # on the stream that is current here, which need not be current where the copies are read

    def read() -> Any:
        # whoever reads a value waits for this stream: `ranks.recording` sees that wait, and none for an event
        torch.accelerator.current_stream(device).wait_event(made)
        return copies

    return read
