"""Pools on leased devices; torch takes ``cpu:1`` for a device, so a host with several is to be had anywhere."""

import threading
import time
from pathlib import Path

import pytest

from pipeconform.errors import PoolError
from pipeconform.ranks.devices import Devices, device_names
from pipeconform.ranks.leases import Leases
from pipeconform.ranks.pools import Pools
from tests.ranks.plain_values import read

GUARD = 30.0
PRELOAD = ("torch", "torch.distributed", "rank_tasks")
FOUR = Devices(device_type="cpu", backend="gloo", count=4)
NAMES = ("0", "1", "2", "3")


def leases_in(folder):
    return Leases("cpu", NAMES, folder=folder)


@pytest.fixture(autouse=True)
def task_modules(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.fixture
def pools(tmp_path):
    with Pools(preload=PRELOAD, devices=FOUR, leases=leases_in(tmp_path)) as pools:
        pools._leasing.patience = 5.0
        yield pools


def where(pools, size):
    vector = read(pools.of_size(size).run("rank_tasks:rank_of", time_limit=GUARD))
    return tuple(device for _, _, device, _ in vector.values)


def test_ranks_are_on_devices_that_nobody_else_has(pools, tmp_path):
    with leases_in(tmp_path).take(1, patience=0.0):
        assert where(pools, 3) == ("cpu:1", "cpu:2", "cpu:3")
        with pytest.raises(PoolError, match="4 cpu of this host were not free within 5 s"):
            where(pools, 4)
    assert where(pools, 4) == ("cpu:0", "cpu:1", "cpu:2", "cpu:3")


def test_a_task_waits_for_devices_and_gives_them_back(pools, tmp_path):
    held = leases_in(tmp_path).take(4, patience=0.0)
    release = threading.Timer(0.3, held.release)
    release.start()
    begun = time.monotonic()
    assert where(pools, 2) == ("cpu:0", "cpu:1")
    assert time.monotonic() - begun > 0.25
    release.join()

    with leases_in(tmp_path).take(4, patience=0.0) as all_of_them:
        assert len(all_of_them.indices) == 4


def test_ranks_stay_warm_on_the_devices_they_had(pools, tmp_path):
    def pids():
        return read(pools.of_size(2).run("rank_tasks:pid", time_limit=GUARD)).values

    with leases_in(tmp_path).take(1, patience=0.0):
        first = pids()  # on 1 and 2
    assert pids() == first
    pools.of_size(2).restart()
    assert set(pids()).isdisjoint(first)


def test_worlds_of_other_sizes_use_other_devices_where_there_are_some(pools, tmp_path):
    """Every process that has used a device keeps memory there: all worlds began on the first device."""
    assert where(pools, 1) == ("cpu:0",)
    assert where(pools, 2) == ("cpu:1", "cpu:2")
    assert "cpu:3" in where(pools, 3)
    assert where(pools, 1) == ("cpu:0",)

    oracle = read(pools.oracle.run("rank_tasks:rank_of", time_limit=GUARD))
    assert oracle.values[0][2] == "cpu:3"


def test_a_device_is_leased_for_all_ranks_that_share_it(tmp_path):
    shared = Devices(device_type="cpu", backend="gloo", count=2, ranks_per_device=2)
    leases = Leases("cpu", NAMES[:2], folder=tmp_path)
    with Pools(preload=PRELOAD, devices=shared, leases=leases) as pools:
        with leases.take(1, patience=0.0):
            assert where(pools, 2) == ("cpu:1", "cpu:1")
        assert where(pools, 3) == ("cpu:0", "cpu:0", "cpu:1")
        with pytest.raises(PoolError, match="5 ranks need 3 cpu device"):
            pools.of_size(5)


def test_devices_go_by_the_names_that_the_host_knows(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, GPU-7f")
    assert device_names("cuda", 3) == ("4", "GPU-7f", "2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert device_names("cuda", 2) == ("0", "1")
