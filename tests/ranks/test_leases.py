"""Leases on numbered things of a host: disjoint, given back by whoever dies, the largest wish first."""

import os
import signal
import subprocess
import sys

import pytest

from pipeconform.errors import PoolError, UsageError
from pipeconform.ranks.leases import FOLDER_VARIABLE, Leases, leases_folder
from tests.waiting import until

FOUR = ("0", "1", "2", "3")
HOLD = """
import sys, time
from pathlib import Path
from pipeconform.ranks.leases import Leases
number, patience = int(sys.argv[2]), float(sys.argv[3])
lease = Leases("cuda", ("0", "1", "2", "3"), folder=Path(sys.argv[1])).take(number, patience=patience)
print(*lease.indices, flush=True)
time.sleep(float(sys.argv[4]))
"""


@pytest.fixture
def hold(tmp_path):
    """Start a process that takes so many and keeps them for some seconds; `.stdout` says which."""
    processes = []

    def start(number, *, patience=30.0, seconds=60.0):
        command = [sys.executable, "-c", HOLD, tmp_path, number, patience, seconds]
        processes.append(subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def indices(process):
    return [int(word) for word in process.stdout.readline().split()]


def wishes(folder):
    return sorted(path.name for path in folder.glob("cuda-wish-*"))


def test_two_processes_hold_different_ones(hold, tmp_path):
    other = indices(hold(2))
    with Leases("cuda", FOUR, folder=tmp_path).take(2, patience=0.0) as mine:
        assert sorted([*other, *mine.indices]) == [0, 1, 2, 3]


def test_what_is_given_back_can_be_taken_and_the_own_ones_are_preferred(tmp_path):
    leases = Leases("cuda", FOUR, folder=tmp_path)
    first = leases.take(2, patience=0.0)
    with leases.take(2, patience=0.0) as second:
        assert second.indices == (2, 3)
        first.release()
        first.release()
    with leases.take(2, patience=0.0, prefer=(2, 3)) as again:
        assert again.indices == (2, 3)


def test_a_killed_process_holds_nothing_any_more(hold, tmp_path):
    victim = hold(4)
    assert indices(victim) == [0, 1, 2, 3]
    assert Leases("cuda", FOUR, folder=tmp_path).try_take(1) is None
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()

    with Leases("cuda", FOUR, folder=tmp_path).take(4, patience=5.0) as lease:
        assert lease.indices == (0, 1, 2, 3)


def test_the_largest_wish_is_served_first_and_small_ones_do_not_pass_it_by(hold, tmp_path):
    leases = Leases("cuda", FOUR, folder=tmp_path)
    held = leases.take(2, patience=0.0)
    small = hold(3)
    until(lambda: len(wishes(tmp_path)) == 1, limit=30.0)
    large = hold(4, seconds=0.0)
    until(lambda: len(wishes(tmp_path)) == 2, limit=30.0)
    assert leases.try_take(1) is None  # two are free, but for those who wait
    held.release()

    assert indices(large) == [0, 1, 2, 3]
    assert len(indices(small)) == 3
    assert large.wait(30) == 0


def test_the_wish_of_a_dead_process_keeps_nobody_waiting(hold, tmp_path):
    leases = Leases("cuda", FOUR, folder=tmp_path)
    held = leases.take(1, patience=0.0)
    waiting = hold(4)
    until(lambda: wishes(tmp_path), limit=30.0)
    waiting.kill()
    waiting.wait()

    with held, leases.take(3, patience=5.0) as rest:
        assert rest.indices == (1, 2, 3)
    assert wishes(tmp_path) == []


def test_who_waits_too_long_is_told_who_holds_them(hold, tmp_path):
    owner = hold(4)
    indices(owner)
    with pytest.raises(PoolError, match=rf"2 cuda of this host were not free .* process {owner.pid} of user"):
        Leases("cuda", FOUR, folder=tmp_path).take(2, patience=0.1)
    assert wishes(tmp_path) == []


def test_more_than_there_are_is_a_mistake_of_ours(tmp_path):
    with pytest.raises(ValueError, match="5 of 4 cuda"):
        Leases("cuda", FOUR, folder=tmp_path).take(5, patience=0.0)


def test_names_of_any_kind_are_files(tmp_path):
    leases = Leases("cuda", ("GPU-8932f937", "MIG-GPU/7/0"), folder=tmp_path)
    with leases.take(2, patience=0.0):
        assert leases.try_take(1) is None
        assert (tmp_path / "cuda-MIG_GPU_7_0.lock").is_file()


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=FOLDER_VARIABLE):
        Leases("cuda", FOUR, folder=tmp_path / "file")


def test_the_folder_is_the_users_or_the_one_that_the_environment_names(monkeypatch, tmp_path):
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    assert leases_folder().name == f"pipeconform-leases-{os.getuid()}"
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert leases_folder() == tmp_path
