"""Controllers in this process, agents in processes of their own, all over loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pipeconform.attach.greeting import own_versions
from pipeconform.attach.hub import Hub
from pipeconform.attach.pools import Controller
from pipeconform.ranks.devices import resolve

HERE = Path(__file__).parent
TOKEN = "a token for these tests only"
GUARD = 60.0  # seconds no test comes near unless something hangs
PRELOAD = ("torch", "torch.distributed", "attach_tasks")
WITHOUT_TORCH = ("attach_tasks",)  # for ranks that need no process group


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def two_free_ports() -> tuple[int, int]:
    """Two in a row, as a run with two processes listens on."""
    while True:
        first = free_port()
        with contextlib.suppress(OSError, OverflowError), socket.create_server(("127.0.0.1", first + 1)):
            return first, first + 1


def wait_for(
    condition: Callable[[], object],
    *,
    step: Callable[[], object] = lambda: time.sleep(0.02),
    limit: float = GUARD,
) -> None:
    """Return when something is so; it is a failure when that takes longer than `limit` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, "what was waited for never came"
        step()


@dataclass
class Site:
    """A hub and the agents that were started for it."""

    hub: Hub
    lines: list[str]
    """What the hub said."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, rank: int = 0, *, token: str = TOKEN, wait: float = 20, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start an agent as a launcher would."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
            "PIPECONFORM_TOKEN": token,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "nowhere",
            **variables,
        }
        command = [
            sys.executable,
            "-m",
            "pipeconform.agent",
            "--controller",
            self.hub.address,
            "--wait",
            str(wait),
        ]
        self.processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE))
        return self.processes[-1]

    def step_until(self, condition: Callable[[], object]) -> None:
        """Let the hub work until something is so."""
        wait_for(condition, step=lambda: self.hub.step(0.05))

    def await_agents(self, number: int) -> None:
        """Let the hub work until so many agents are there."""
        self.step_until(lambda: len(self.hub.agents) == number)

    def close(self) -> None:
        """End everything."""
        self.hub.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stderr is not None:
                process.stderr.close()


def make_site(**how: float) -> Site:
    own_versions.cache_clear()  # sources may have been edited since
    lines: list[str] = []
    return Site(Hub("127.0.0.1", 0, token=TOKEN.encode(), say=lines.append, **how), lines)


def controller_of(site: Site, *, least: int, patience: float = 20.0) -> Controller:
    return Controller(site.hub, least=least, patience=patience, devices=resolve("cpu"), say=site.lines.append)
