"""Disasters of mixed kind in one run lose no verdict, touch no later task and leave nothing behind."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeconform.ranks import Crew, Died, ForkServer, Pool, Raised, Stuck
from tests.ranks.plain_values import read

KINDS: dict[str, Callable[[object], bool]] = {
    # what happens to rank 0, and whether a verdict on it says so
    "raise_error": lambda one: isinstance(one, Raised) and one.type == "ValueError",
    "leave": lambda one: isinstance(one, Raised) and one.type == "SystemExit",
    "kill_itself": lambda one: isinstance(one, Died) and one.signal == "SIGKILL",
    "end_as_out_of_memory": lambda one: isinstance(one, Died) and one.signal == "SIGKILL",
    "abort_itself": lambda one: isinstance(one, Died) and one.signal == "SIGABRT",
    "exit_silently": lambda one: isinstance(one, Died) and one.exit_code == 0,
    "return_no_bytes": lambda one: isinstance(one, Raised) and one.type == "TypeError",
    "sleep_forever": lambda one: isinstance(one, Stuck) and "no rank used CPU time" in one.why,
    "stop_itself": lambda one: isinstance(one, Stuck) and "stopped by a signal" in one.why,
}
IDLE = 0.3  # seconds: hangs are half of a run's time


def mixed(count: int) -> list[str]:
    """Kinds in an order without pattern, the same every time; every kind comes once at the beginning."""
    return [*KINDS, *random.Random(5).choices(sorted(KINDS), k=count - len(KINDS))]


def survive(server: ForkServer, kinds: list[str], *, temporary: Path) -> None:
    """Let everything happen to one pool, and look at what is left when each kind has come once and at the end."""
    pids: set[int] = set()

    def left() -> dict[str, object]:
        pool.wait_until_formed()
        threads = os.listdir(f"/proc/{server.pid}/task")
        children = [Path(f"/proc/{server.pid}/task/{one}/children").read_text().split() for one in threads]
        return {
            "processes": sum(map(len, children)),
            "descriptors here": len(os.listdir("/proc/self/fd")),
            "descriptors of the server": len(os.listdir(f"/proc/{server.pid}/fd")),
            "files of the server": len(os.listdir(server.folder)),
            "temporary files": sorted(
                str(path.relative_to(temporary))
                for path in temporary.rglob("*")
                if server.folder not in (path, *path.parents)
            ),
            "shared memory": [
                name for name in os.listdir("/dev/shm") if any(f"_{pid}_" in name for pid in pids)
            ],
        }

    with Pool(Crew(server, size=2), idle_limit=IDLE) as pool:
        early: dict[str, object] = {}
        for number, kind in enumerate(kinds):
            pids.update(pool.pids)
            vector = pool.run(f"rank_tasks:{kind}", time_limit=60.0)
            assert len(vector) == 2
            assert KINDS[kind](vector[0]), f"disaster {number}, {kind}:\n{vector.describe()}"
            assert read(pool.run("rank_tasks:total", time_limit=60.0)).values == (3.0, 3.0), (number, kind)
            if number == len(KINDS) - 1:
                early = left()
        assert left() == early
    assert early["shared memory"] == []


@pytest.fixture
def own_server(start_server, tmp_path, monkeypatch):
    """A server whose temporary files are nobody else's."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    server = start_server(preload=("torch", "torch.distributed", "rank_tasks"))
    server.wait_until_started()
    return server


def test_a_few_disasters_of_every_kind_leave_nothing_behind(own_server, tmp_path):
    survive(own_server, mixed(30), temporary=tmp_path)


@pytest.mark.slow
def test_five_hundred_disasters_of_mixed_kind_leave_nothing_behind(own_server, tmp_path):
    survive(own_server, mixed(500), temporary=tmp_path)
