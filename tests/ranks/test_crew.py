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


def made(refusals):
    """How many refusals were made."""
    return refusals.with_suffix(".made").stat().st_size


@pytest.fixture
def start(start_server, refusals):
    """Start one rank, on the meta device, which every machine has and which stands for any."""
    server = start_server(Environment("a", {"REFUSALS": str(refusals)}), preload=("refuses_device",))
    return lambda: Pool(Crew(server, size=1, backend=None, devices=("meta",)))


def test_a_device_that_has_served_ranks_is_asked_again(start, refusals):
    with start() as pool:
        assert pool.run("rank_tasks:empty", time_limit=GUARD).ok
        refusals.write_text("3")
        pool.restart()
        assert pool.run("rank_tasks:empty", time_limit=GUARD).ok

        refusals.write_text("99")  # three were made
        pool.restart()
        with pytest.raises(PoolError, match="the device takes no clients"):
            pool.run("rank_tasks:empty", time_limit=GUARD)
    assert made(refusals) - 3 in (4, 5)  # a rank that has gone is replaced before it is waited for


def test_others_are_ended_first_since_the_service_waits_until_they_are_gone(start, refusals):
    with start() as other, start() as pool:
        assert other.run("rank_tasks:empty", time_limit=GUARD).ok
        assert pool.run("rank_tasks:empty", time_limit=GUARD).ok
        before = other._crew.group
        refusals.write_text("1")
        pool.restart()
        assert pool.run("rank_tasks:empty", time_limit=GUARD).ok
        while not before.exits:
            other._crew.step(0.1)
        assert other.run("rank_tasks:empty", time_limit=GUARD).ok
        assert other._crew.group is not before


def test_one_that_has_never_served_any_is_not(start, refusals):
    refusals.write_text("99")
    with start() as pool, pytest.raises(PoolError, match="the device takes no clients"):
        pool.run("rank_tasks:empty", time_limit=GUARD)
    assert made(refusals) in (1, 2)
