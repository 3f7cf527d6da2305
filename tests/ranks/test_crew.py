"""Ranks on a device that refuses them for a while, as a service does that starts anew."""

from __future__ import annotations

import pytest

from pipeconform.errors import PoolError
from pipeconform.ranks import Crew, Environment, Pool, crew

GUARD = 30.0  # seconds


@pytest.fixture
def refusals(tmp_path, monkeypatch):
    """A file with the number of processes that the device will refuse."""
    monkeypatch.setattr(crew, "_PAUSES", (0.01, 0.01, 0.01))
    file = tmp_path / "refusals"
    file.write_text("0")
    return file


@pytest.fixture
def pool(start_server, refusals):
    """One rank, on the meta device, which every machine has and which stands for any."""
    server = start_server(Environment("a", {"REFUSALS": str(refusals)}), preload=("refuses_device",))
    with Pool(Crew(server, size=1, backend=None, devices=("meta",))) as made:
        yield made


def test_a_device_that_has_served_ranks_is_asked_again(pool, refusals):
    assert pool.run("rank_tasks:empty", time_limit=GUARD).ok
    refusals.write_text("3")
    pool.restart()
    assert pool.run("rank_tasks:empty", time_limit=GUARD).ok

    refusals.write_text("4")
    pool.restart()
    with pytest.raises(PoolError, match="the device takes no clients"):
        pool.run("rank_tasks:empty", time_limit=GUARD)
    assert refusals.read_text() == "0"


def test_one_that_has_never_served_any_is_not(pool, refusals):
    refusals.write_text("1")
    pool.restart()
    with pytest.raises(PoolError, match="the device takes no clients"):
        pool.run("rank_tasks:empty", time_limit=GUARD)
