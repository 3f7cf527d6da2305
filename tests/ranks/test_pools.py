"""Pools by world size share a fork server, stay few, and come back when their server is gone."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from pipeconform.errors import PoolError
from pipeconform.ranks import Devices, Pools
from tests.waiting import until

GUARD = 30.0  # seconds no task comes near unless something hangs


def test_pools_are_made_once_per_world_size_and_the_least_used_gives_way(survivors):
    with Pools(max_sizes=2) as pools:
        one = pools.of_size(1)
        gone = pools.of_size(2).pids
        assert pools.of_size(1) is one
        pools.of_size(3)
        assert pools.sizes == (1, 3)
        assert survivors(gone) == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ranks are not stopped")
def test_ranks_of_other_sizes_are_stopped_until_their_next_task(survivors, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    with Pools() as pools:
        idle = pools.of_size(2)
        before = idle.pids
        pools.of_size(1).wait_until_formed()
        # one that waits for a processor stops when it gets one
        until(lambda: _states(before) == {"T"}, limit=GUARD, told=lambda: _states(before))
        pending = idle.start("rank_tasks:empty", time_limit=GUARD)
        assert "T" not in _states(before)
        assert pending.wait().ok
        assert idle.pids == before
        pools.of_size(1)
    assert survivors(before) == []


def test_ranks_at_work_are_not_stopped():
    with Pools() as pools:
        pending = pools.of_size(2).start("builtins:print", time_limit=GUARD)
        pools.of_size(1).wait_until_formed()
        assert "T" not in _states(pending._group.pids)
        assert len(pending.wait()) == 2


def _states(pids):
    """The states of processes, as the kernel calls them: T is stopped."""
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


def test_the_oracle_runs_beside_the_ranks():
    with Pools() as pools:
        pending = (
            pools.of_size(2).start("builtins:print", time_limit=GUARD),
            pools.oracle.start("builtins:print", time_limit=GUARD),
        )
        assert [len(each.wait()) for each in pending] == [2, 1]
        assert pools.oracle is pools.oracle


def test_a_killed_server_is_replaced(survivors):
    with Pools(preload=()) as pools:
        old = pools.server
        ranks = pools.oracle.pids
        os.kill(old.pid, signal.SIGKILL)
        assert survivors([old.pid]) == []
        with pytest.raises(PoolError):
            pools.oracle.run("builtins:print", time_limit=GUARD)
        assert pools.oracle.pids != ranks
        assert pools.server is not old
        assert survivors(ranks) == []


def test_too_few_devices_are_said_before_anything_starts():
    devices = Devices("cuda", backend="nccl", count=1)
    with Pools(preload=(), devices=devices) as pools, pytest.raises(PoolError, match="2 ranks need 2 cuda"):
        pools.of_size(2)


def test_closed_pools_say_so_and_leave_nothing(survivors):
    pools = Pools(preload=())
    pids = [*pools.oracle.pids, pools.server.pid]
    pools.close()
    pools.close()
    assert survivors(pids) == []
    with pytest.raises(PoolError, match="the pools are closed"):
        pools.of_size(1)


def test_at_least_one_size_may_live():
    with pytest.raises(ValueError, match="at least 1"):
        Pools(max_sizes=0)
