"""A certificate's description of the machine: everything that could change a number, but not its name."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

import torch

from pipeconform.certificate.contents import MachineEnvironment
from pipeconform.execute.engine import Component
from pipeconform.report.result import Environment

__all__ = ["PACKAGES", "differences", "is_switch", "machine_environment"]

PACKAGES = ("torch", "numpy", "hypothesis", "pytest", "pytest-xdist", "msgspec", "pipeconform")
_SWITCHES = re.compile(
    r"(CUDA|CUBLAS|CUDNN|NVIDIA|NCCL|GLOO|TORCH|PYTORCH|OMP|MKL|KMP|OPENBLAS|HIP|ROCR|HSA|RCCL|XPU|UCX|FI)_\w+"
    r"|PYTHONHASHSEED|PYTHONOPTIMIZE|LD_PRELOAD|MALLOC_ARENA_MAX"
)
_PATHS = re.compile(r"(/[\w.+@-]+){2,}")


def machine_environment(
    environment: Environment, *, run_id: str = "", engine: tuple[Component, ...] = ()
) -> MachineEnvironment:
    """The machine of this process; `environment` is what the ranks of the run `run_id` reported.

    `engine` are the files of the judged implementation. Switches whose values are paths are left out.
    """
    return MachineEnvironment(
        environment=environment,
        processor=_processor(),
        memory=_memory(),
        drivers=tuple(_drivers()),
        torch_build=f"{torch.version.git_version}\n{torch.__config__.show()}".strip(),
        packages={name: metadata.version(name) for name in PACKAGES},
        switches={
            name: _PATHS.sub("<path>", value) for name, value in sorted(os.environ.items()) if is_switch(name)
        },
        run_id=run_id,
        engine=engine,
    )


def differences(one: MachineEnvironment, other: MachineEnvironment) -> tuple[str, ...]:
    """The fields in which two environments differ."""
    pairs = (("", one, other), ("environment.", one.environment, other.environment))
    return tuple(
        f"{owner}{field}"
        for owner, a, b in pairs
        for field in a.__struct_fields__
        if field not in ("environment", "run_id") and getattr(a, field) != getattr(b, field)
    )


def is_switch(name: str) -> bool:
    """Whether an environment variable may change a number."""
    return _SWITCHES.fullmatch(name) is not None


def _processor() -> str:
    for line in _lines(Path("/proc/cpuinfo")):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _drivers() -> list[str]:
    return _lines(Path("/proc/driver/nvidia/version"))[:1]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
