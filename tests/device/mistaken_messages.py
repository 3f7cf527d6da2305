"""What torch's pipelining does with messages that do not fit: on gloo, and on a backend like NCCL. Plain torch only.

Stage 0 of two changes its output in the second step, or raises there. Verdicts of ERR on the device differ from those
on the CPU because of this: gloo ends a process that gets a longer message than it has room for, takes a shorter one
without a word, and wakes whoever waits for a process that has gone. NCCL asks for equal sizes and promises nothing
else; the test backend waits.

    eval "$(python -m tests.device.building)"; python -m tests.device.mistaken_messages
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

__all__ = ["BACKENDS", "MISTAKES", "outcomes"]

LIMIT = 8.0  # seconds; whoever has not ended by then waits
MISTAKES = ("longer", "shorter", "raises")
BACKENDS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "gloo": ("cpu", "gloo", ""),
        "testccl": ("testdev", "testccl", "nccl"),
        "testccl that compares sizes": ("testdev", "testccl", "nccl,-unsized"),
        "testccl that notices who has gone": ("testdev", "testccl", "nccl,-unsized,-silent"),
    }
)


class Changing(nn.Module):
    """A product, until `mistake` says what to do instead."""

    mistake = ""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.weight
        if self.mistake == "raises":
            raise ArithmeticError("stage 0")
        if self.mistake == "longer":
            return torch.cat([x, x], dim=1)
        return x[:, :1] if self.mistake == "shorter" else x


def _rank(rank: int, mistake: str, backend: str, folder: Path) -> str:
    kind, name, switches = BACKENDS[backend]
    if kind != "cpu":
        _switch(switches)
    device = torch.device("cpu") if kind == "cpu" else torch.device(kind, rank)
    if kind != "cpu":
        torch.accelerator.set_device_index(rank)
    store = dist.FileStore(str(folder / "store"), 2)  # type: ignore[attr-defined]
    dist.init_process_group(name, store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    module = Changing().to(device)
    schedule = ScheduleGPipe(
        PipelineStage(module, rank, 2, device), 2, loss_fn=lambda output, target: output.sum()
    )
    x = torch.ones(2, 2, device=device)

    def once() -> None:
        schedule.step(target=x) if rank else schedule.step(x)
        if kind != "cpu":
            torch.accelerator.synchronize()

    once()
    module.mistake = "" if rank else mistake
    try:
        once()
    except Exception as error:
        return f"raises {type(error).__name__}"
    return "returns"


def _switch(switches: str) -> None:
    without = {name[1:] for name in switches.split(",") if name.startswith("-")}
    for name in torch.testdev.switches():  # type: ignore[attr-defined]
        torch.testdev.set_switch(name, name not in without | {"no-float64", "spins"})  # type: ignore[attr-defined]


def _forked(rank: int, mistake: str, backend: str, folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    (folder / f"{rank}.part").write_text(_rank(rank, mistake, backend, folder))
    (folder / f"{rank}.part").rename(folder / f"{rank}.txt")
    os._exit(0)  # its connections close


def outcomes(mistake: str, backend: str) -> tuple[str, str]:
    """What becomes of the two ranks: returns, raises, died or waits."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        left = {_forked(rank, mistake, backend, folder): rank for rank in range(2)}
        found, until = {}, time.monotonic() + LIMIT
        while left and time.monotonic() < until:
            for pid in list(left):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    rank, code = left.pop(pid), os.waitstatus_to_exitcode(status)
                    said = folder / f"{rank}.txt"
                    died = f"died ({signal.Signals(-code).name})" if code < 0 else f"ended with {code}"
                    found[rank] = said.read_text() if said.exists() else died
            time.sleep(0.02)
        for pid, rank in left.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            said = folder / f"{rank}.txt"
            found[rank] = said.read_text() if said.exists() else "waits"
        return found[0], found[1]


if __name__ == "__main__":
    for mistake in MISTAKES:
        for backend in BACKENDS:
            first, second = outcomes(mistake, backend)
            print(f"{mistake:8} {backend:34} rank 0 {first}; rank 1 {second}")
            sys.stdout.flush()
