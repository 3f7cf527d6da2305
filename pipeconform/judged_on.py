"""Where an implementation is judged, for claims that depend on it."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["BACKEND_VARIABLE", "DEVICE_VARIABLE", "JudgedOn", "judged_on"]

DEVICE_VARIABLE = "PIPECONFORM_DEVICE"
BACKEND_VARIABLE = "PIPECONFORM_BACKEND"


@dataclass(frozen=True, kw_only=True)
class JudgedOn:
    """A type of device, such as ``cuda``, and the torch.distributed backend that moves its tensors."""

    device_type: str = "cpu"
    backend: str = "gloo"


def judged_on() -> JudgedOn:
    """Where the implementation is judged, in each of its processes; the CPU with gloo if nothing else is said.

    ``describe()`` may ask, if an engine offers less with some backends. Whether a machine *has* a device says nothing:
    it can have one and judge on the CPU.
    """
    plain = JudgedOn()
    return JudgedOn(
        device_type=os.environ.get(DEVICE_VARIABLE, plain.device_type),
        backend=os.environ.get(BACKEND_VARIABLE, plain.backend),
    )
