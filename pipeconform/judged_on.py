"""Where an implementation is judged, for claims that depend on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["JudgedOn", "judged_on"]

_DEVICE = "PIPECONFORM_DEVICE"
_BACKEND = "PIPECONFORM_BACKEND"


@dataclass(frozen=True, kw_only=True)
class JudgedOn:
    """A type of device, such as ``cuda``, and the torch.distributed backend that moves its tensors."""

    device_type: str = "cpu"
    backend: str = "gloo"

    def told_in(self, own: Mapping[str, str]) -> dict[str, str]:
        """The environment variables that tell processes so, whatever a run around this one has set in `own`.

        Of the CPU with gloo nothing has to be told.
        """
        told = {_DEVICE: self.device_type, _BACKEND: self.backend}
        return {} if self == JudgedOn() and own.keys().isdisjoint(told) else told


def judged_on() -> JudgedOn:
    """Where the implementation is judged, in each of its processes; the CPU with gloo if nothing else is said.

    ``describe()`` may ask, if an engine offers less with some backends. Whether a machine *has* a device says nothing:
    it can have one and judge on the CPU.
    """
    plain = JudgedOn()
    return JudgedOn(
        device_type=os.environ.get(_DEVICE, plain.device_type),
        backend=os.environ.get(_BACKEND, plain.backend),
    )
