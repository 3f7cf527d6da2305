"""One fork server for the folder; tests that break servers start their own."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeconform.ranks import Environment, ForkServer, pool
from pipeconform.ranks.watch import Watch
from tests.ranks.acted_ranks import ActedRanks, Clock

HERE = str(Path(__file__).parent)
GUARD = 30.0  # seconds no test comes near unless something hangs


@contextmanager
def _task_modules() -> Iterator[None]:
    """Ranks import from where the controller did when it started their server."""
    sys.path.insert(0, HERE)
    try:
        yield
    finally:
        sys.path.remove(HERE)


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    with _task_modules(), ForkServer(preload=("torch", "torch.distributed", "rank_tasks")) as server:
        server.wait_until_started()
        yield server


@pytest.fixture
def start_server() -> Iterator[Callable[..., ForkServer]]:
    """Start servers of the test's own; without torch they start at once."""
    servers: list[ForkServer] = []

    def start(environment: Environment | None = None, *, preload: Sequence[str] = ()) -> ForkServer:
        with _task_modules():
            servers.append(ForkServer(environment, preload=preload))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def survivors() -> Callable[[Sequence[int]], list[int]]:
    """Which of some processes still live, when they had time enough to end."""

    def wait(pids: Sequence[int]) -> list[int]:
        deadline = time.monotonic() + GUARD
        while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.01)
        return [pid for pid in pids if _alive(pid)]

    return wait


@pytest.fixture
def descriptors() -> Callable[[], int]:
    return lambda: len(os.listdir("/proc/self/fd"))


@pytest.fixture
def acted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ActedRanks]:
    """Ranks that are no processes, as many as asked for, on a clock that only they move."""
    clock = Clock()
    monkeypatch.setattr(pool, "time", clock)
    monkeypatch.setattr(pool, "Watch", functools.partial(Watch, clock=clock.monotonic))
    return lambda size: ActedRanks(size, clock)


@pytest.fixture
def ranks(acted: Callable[..., ActedRanks]) -> ActedRanks:
    """Two of them."""
    return acted(2)
