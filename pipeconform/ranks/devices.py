"""Which device each rank uses, as data; nothing here initialises a device in the controller.

A process that has touched CUDA cannot fork ranks that use it. A separate process therefore looks for devices, and only
if something other than the CPU is wanted.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from pipeconform.errors import PoolError, UsageError
from pipeconform.ranks.pins import WORKSPACE

__all__ = [
    "Devices",
    "Machine",
    "backend_for",
    "backends_in",
    "device_names",
    "probe",
    "require_backend",
    "resolve",
]

_VISIBLE = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
}

# What NCCL needs so that several ranks can share a GPU, from its release notes for 2.30 and its page of environment
# variables. Without the third, kernels of ranks that wait for one another can fill the GPU before the last has begun.
SHARING: Mapping[str, str] = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",  # NVLink SHARP does not work with ranks that share a GPU
    "NCCL_MAX_CTAS": "2",  # of every kernel: all ranks' kernels must fit on the GPU together
}
# torch's flight recorder otherwise does not know which kernels have begun.
_TIMING: Mapping[str, str] = {"TORCH_NCCL_ENABLE_TIMING": "1"}
_FIRST_SHARING_NCCL = (2, 30)

_PROBE_LIMIT = 120.0  # seconds
_PROBE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from pipeconform.ranks import probing; probing.{function}(sys.argv[1])"
)
"""With our own path: pipeconform need not be installed."""
_USUAL = frozenset({"gloo", "nccl"})
"""Backends that need no trial: torch has them, and whoever chooses devices has asked about NCCL."""
_UNKNOWN = re.compile(r"Unknown (?:c10d )?backend type|have \w+ built in")
"""What torch says of a backend that it does not know, or was built without."""


class Machine(msgspec.Struct, frozen=True):
    """What a machine has of one device type; ``count`` None means as many as needed (the CPU)."""

    device_type: str
    count: int | None
    backend: str | None
    error: str | None = None
    nccl: tuple[int, ...] | None = None
    """The release of the NCCL that torch loads, if it has NCCL."""
    names: tuple[str, ...] = ()
    """What each device calls itself; empty if unknown."""
    releases: dict[str, str] = {}
    """The releases of what drives the devices: CUDA or ROCm, and the driver."""


@dataclass(frozen=True)
class Devices:
    """Ranks on devices: ``ranks_per_device`` neighbours share one, by local rank.

    ``indices`` are the leased devices; without them every device can be used. ``names`` say what each is, with the
    releases of what drives it.
    """

    device_type: str
    backend: str
    count: int | None
    ranks_per_device: int = 1
    indices: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def uses_nccl(self) -> bool:
        """Whether NCCL moves the device's tensors."""
        return backend_for(self.backend, self.device_type) == "nccl"

    @property
    def ends_after_errors(self) -> bool:
        """Whether groups end after an error without being aborted."""
        return backend_for(self.backend, self.device_type) == "gloo"

    def of_rank(self, rank: int) -> str:
        """Return the torch device string of ``rank``."""
        if self.count is None:
            return self.device_type
        place = rank // self.ranks_per_device
        return f"{self.device_type}:{self.indices[place] if self.indices else place}"

    @property
    def last(self) -> str:
        """Return the torch device string of the last device."""
        if self.count is None:
            return self.device_type
        return f"{self.device_type}:{self.indices[-1] if self.indices else max(0, self.count - 1)}"

    def needed(self, world_size: int) -> int:
        """Return how many devices a world of ``world_size`` ranks uses."""
        return -(-world_size // self.ranks_per_device)

    def assignment(self, world_size: int) -> tuple[str, ...]:
        """Return the device of every rank of a world."""
        return tuple(self.of_rank(rank) for rank in range(world_size))

    def reason_against(self, world_size: int) -> str | None:
        """Return why ``world_size`` ranks cannot run here, or None if they can."""
        if self.count is None:
            return None
        places = self.count * self.ranks_per_device
        if world_size <= places:
            return None
        share = "" if self.ranks_per_device == 1 else f" with {self.ranks_per_device} ranks on each"
        ranks = "1 rank needs" if world_size == 1 else f"{world_size} ranks need"
        needed = self.needed(world_size)
        devices = f"{needed} {self.device_type} device{'' if needed == 1 else 's'}"
        reason = f"{ranks} {devices}{share}, this machine has {self.count}"
        if not self.count:
            return reason
        return f"{reason}; --ranks-per-device N lets ranks share a device{self._sharing_needs()}"

    def settings(self, own: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that the ranks need in addition; the user's ``own`` environment takes precedence."""
        needed = dict(WORKSPACE) if self.device_type == "cuda" else {}
        if self.uses_nccl:
            needed |= _TIMING if self.ranks_per_device == 1 else {**_TIMING, **SHARING}
        return {name: value for name, value in needed.items() if name not in own}

    def _sharing_needs(self) -> str:
        if not self.uses_nccl:
            return ""
        return " (the nccl backend: NCCL 2.30 or newer with NCCL_MULTI_RANK_GPU_ENABLE=1)"


def backend_for(backend: str, device_type: str) -> str:
    """The backend that moves tensors of a device type: of ``cpu:gloo,cuda:nccl`` ``nccl`` for ``cuda``; maybe none."""
    if ":" not in backend:
        return backend
    pairs = (pair.partition(":") for pair in backend.lower().split(","))
    return next((name for kind, _, name in pairs if kind == device_type), "")


def backends_in(backend: str) -> frozenset[str]:
    """The names in a backend's name: of ``cpu:gloo,cuda:nccl`` both."""
    return frozenset(pair.rpartition(":")[2] for pair in backend.lower().split(","))


def device_names(device_type: str, count: int) -> tuple[str, ...]:
    """The host's names for the devices that this process calls 0, 1, …: processes may be shown different ones."""
    variable = _VISIBLE.get(device_type, "")
    shown = [one.strip() for one in os.environ.get(variable, "").split(",") if one.strip()]
    return tuple(shown[i] if i < len(shown) else str(i) for i in range(count))


@functools.cache
def probe(device: str) -> Machine:
    """Find out, in a separate process, what the machine has of ``device`` ("auto": its accelerator, else the CPU).

    Raises:
        PoolError: the process failed; its stderr is quoted.
    """
    try:
        done = _ask("main", device)
        return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=Machine)
    except subprocess.CalledProcessError as error:
        raise PoolError(f"cannot probe device {device!r}: {error.stderr.strip()}") from error
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError, IndexError) as error:
        raise PoolError(f"cannot probe device {device!r}: {error}") from error


def require_backend(backend: str) -> None:
    """Make a process group of one rank, in a separate process, if ``backend`` is not one of those that torch has.

    Raises:
        UsageError: torch does not know the backend, or was built without it.
    """
    if backends_in(backend) <= _USUAL:
        return
    try:
        _ask("make_group", backend)
    except subprocess.CalledProcessError as error:
        unknown = next(filter(_UNKNOWN.search, reversed(error.stderr.splitlines())), None)
        if unknown is not None:
            raise UsageError(
                f"--backend {backend}: torch has no such backend ({unknown.rstrip('.')}); expected gloo, nccl, or one "
                f"that this torch was built with or that an installed package registers when torch is imported"
            ) from None
    except (OSError, subprocess.TimeoutExpired):
        pass  # what a vendor's backend needs beside a store, ranks have


def _ask(function: str, argument: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own interpreter and our own code
        [sys.executable, "-c", _PROBE.format(function=function), argument, json.dumps(sys.path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PROBE_LIMIT,
        check=True,
    )


def resolve(
    device: str = "auto", *, backend: str = "auto", ranks_per_device: int = 1, machine: Machine | None = None
) -> Devices:
    """Decide devices and backend from what was asked for and what ``machine`` has (default: this one).

    ``device`` is "cpu", "auto" or any torch device type; too few devices for a world are not an error
    here, see :meth:`Devices.reason_against`.

    Raises:
        UsageError: an unknown device type or backend, or a pair that does not work together.
        PoolError: the machine could not be probed.
    """
    if ranks_per_device < 1:
        raise UsageError(f"--ranks-per-device is at least 1, not {ranks_per_device}")
    if machine is None:
        machine = Machine("cpu", count=None, backend="gloo") if device == "cpu" else probe(device)
    if machine.error is not None:
        raise UsageError(
            f"--device {device}: torch does not support it on this machine: {machine.error}; "
            f"'auto' is this machine's accelerator"
        )
    chosen = machine.backend if backend == "auto" else backend
    if chosen is None:
        raise UsageError(
            f"--device {machine.device_type}: torch has no default backend for it; give --backend"
        )
    serving = backend_for(chosen, machine.device_type)
    if not serving:
        raise UsageError(f"--backend {chosen} has none for --device {machine.device_type}")
    if serving == "nccl" and machine.device_type != "cuda":
        raise UsageError(f"--backend nccl needs --device cuda, not {machine.device_type}")
    if serving == "nccl" and ranks_per_device > 1:
        reason = reason_against_sharing(machine.nccl)
        if reason is not None:
            raise UsageError(reason)
    return Devices(
        device_type=machine.device_type,
        backend=chosen,
        count=machine.count,
        ranks_per_device=ranks_per_device,
        names=_described(machine),
    )


def _described(machine: Machine) -> tuple[str, ...]:
    """``NVIDIA H100 80GB HBM3 (driver 570.124, CUDA 12.8, NCCL 2.27.5)`` for every device."""
    parts = [f"{name} {release}" for name, release in machine.releases.items()]
    if machine.nccl is not None:
        parts.append(f"NCCL {'.'.join(map(str, machine.nccl))}")
    driven = f" ({', '.join(parts)})" if parts else ""
    return tuple(f"{name}{driven}" for name in machine.names)


def reason_against_sharing(release: tuple[int, ...] | None) -> str | None:
    """Why ranks cannot share a GPU with this release of NCCL; None if they can, or if the release is unknown."""
    if release is None or release[:2] >= _FIRST_SHARING_NCCL:
        return None
    return (
        f"--ranks-per-device needs NCCL 2.30 or newer, torch loads {'.'.join(map(str, release))} here: "
        f"preload a newer libnccl.so.2 (LD_PRELOAD)"
    )
