"""Where agents come from: what starts them, and on which address they find the controller.

An engine that is there already has found the hosts, and starts, ends and limits processes on them; see
`pipeconform.attach.supervised` for what is left to do.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from shutil import which
from typing import Protocol

from pipeconform.errors import UsageError

__all__ = ["ENGINES", "Engine", "engine_of"]

ENGINES = ("local", "slurm", "ray", "torchrun")
"""The values of ``--on``; local ranks need no agents."""
_RESTARTS = 100
_WAIT = 60  # seconds in which an agent must find the controller, which listens before it starts agents
_WAIT_HERE = 5  # the same on the controller's machine


class Engine(Protocol):
    """Starts agents."""

    @property
    def title(self) -> str:
        """What its processes are called in messages."""

    @property
    def host(self) -> str:
        """The address of this machine at which its agents find the controller."""

    @property
    def restarts_itself(self) -> bool:
        """Whether it starts agents again that ended."""

    def commands(self, agents: int, *, controller: str) -> tuple[tuple[str, ...], ...]:
        """The commands that start so many agents, each to be followed by itself."""

    def again(self, number: int, *, attempt: int, controller: str) -> tuple[str, ...]:
        """The command that replaces the one with this index, for the `attempt`-th time."""


def engine_of(
    name: str, *, device_type: str = "cpu", first: int = 0, environment: Mapping[str, str] | None = None
) -> Engine:
    """The engine of ``--on``. `first` agents are those of other processes of the run, whose devices are left alone.

    Raises:
        UsageError: the engine is unknown, is not installed, or has given this process nothing to start agents on.
    """
    known = os.environ if environment is None else environment
    if name == "torchrun":
        return Torchrun(first=first)
    if name == "ray":
        if find_spec("ray") is None:
            raise UsageError("--on ray needs Ray, which is not installed: pip install 'pipeconform[ray]'")
        return Ray(gpu=device_type == "cuda")
    if name != "slurm":
        raise UsageError(f"--on {name}: expected {', '.join(ENGINES)}")
    if "SLURM_JOB_ID" not in known:
        raise UsageError(
            "--on slurm runs in an allocation of Slurm, and there is none (SLURM_JOB_ID is not set); start it with "
            "sbatch or salloc"
        )
    if which("srun") is None:
        raise UsageError("--on slurm needs the command srun, which is not on the PATH of this process")
    nodes = known.get("SLURM_JOB_NUM_NODES", "1")
    return Slurm(
        nodes=int(nodes) if nodes.isdecimal() else 1, node=known.get("SLURMD_NODENAME", ""), first=first
    )


def _agent(controller: str, *, wait: int = _WAIT) -> tuple[str, ...]:
    return ("-m", "pipeconform.agent", "--controller", controller, "--wait", str(wait), "--guest")


def _address(*names: str) -> str:
    """The address of the first of these names of this machine that can be resolved."""
    for name in filter(None, names):
        with contextlib.suppress(OSError):
            return socket.gethostbyname(name)
    return "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """A step of the allocation for each agent, on its nodes in turn: srun does not restart a task that ends."""

    nodes: int
    node: str = ""
    """Slurm's name of this node."""
    first: int = 0
    """The number of the first agent."""
    title: str = "Slurm's step"
    restarts_itself: bool = False

    @property
    def host(self) -> str:
        """This node's address, as the allocation's nodes resolve its name."""
        return _address(self.node, socket.gethostname())

    def commands(self, agents: int, *, controller: str) -> tuple[tuple[str, ...], ...]:
        """A step for each agent."""
        return tuple(self.again(number, attempt=0, controller=controller) for number in range(agents))

    def again(self, number: int, *, attempt: int, controller: str) -> tuple[str, ...]:
        """A step on the next node each time: the last one may be gone."""
        place = self.first + number
        return (
            "srun",
            *("--ntasks=1", "--nodes=1", f"--relative={(place + attempt) % self.nodes}"),
            # steps share what the job has; each agent takes its node's device by number
            *("--overlap", "--unbuffered", "--kill-on-bad-exit=0", "--job-name=pipeconform-agent"),
            *(sys.executable, *_agent(controller), "--device-index", str(place // self.nodes)),
        )


@dataclass(frozen=True, kw_only=True)
class Torchrun:
    """One torchrun on this machine, which restarts its workers."""

    first: int = 0
    """The device of the first worker."""
    title: str = "torchrun"
    host: str = "127.0.0.1"
    restarts_itself: bool = True

    def commands(self, agents: int, *, controller: str) -> tuple[tuple[str, ...], ...]:
        """One command for all agents."""
        numbers = (f"--nproc-per-node={agents}", f"--max-restarts={_RESTARTS}", "--standalone")
        agent = (*_agent(controller, wait=_WAIT_HERE), "--first-device", str(self.first))
        return ((sys.executable, "-m", "torch.distributed.run", *numbers, *agent),)

    def again(self, number: int, *, attempt: int, controller: str) -> tuple[str, ...]:
        """Not asked for: torchrun restarts what ends, and its own end is the end of all."""
        raise AssertionError(f"torchrun restarts its workers by itself: {number}, {attempt}, {controller}")


@dataclass(frozen=True, kw_only=True)
class Ray:
    """A process that keeps actors of Ray running; see `pipeconform.attach.on_ray`."""

    gpu: bool = False
    title: str = "Ray's process"
    restarts_itself: bool = True

    @property
    def host(self) -> str:
        """This machine's address, as its own name is resolved."""
        return _address(socket.gethostname())

    def commands(self, agents: int, *, controller: str) -> tuple[tuple[str, ...], ...]:
        """One command for all agents."""
        asked = ("--agents", str(agents), "--controller", controller, *(["--gpu"] if self.gpu else []))
        return ((sys.executable, "-m", "pipeconform.attach.on_ray", *asked),)

    def again(self, number: int, *, attempt: int, controller: str) -> tuple[str, ...]:
        """Not asked for: the process starts actors again, and its own end is the end of all."""
        raise AssertionError(f"actors are started again elsewhere: {number}, {attempt}, {controller}")
