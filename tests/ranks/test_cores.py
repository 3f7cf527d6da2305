"""Workers on cores of their own."""

import os
import subprocess
import sys

import pytest

from pipeconform.ranks.leases import FOLDER_VARIABLE

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs two cores that can be chosen"
)
WORKER = """
import os, subprocess, sys, threading
from pathlib import Path
from pipeconform.ranks.cores import Cores
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
thread = threading.Thread(target=lambda: sys.stdin.readline())
thread.start()
cores = Cores(workers=int(sys.argv[1]))
def tell():
    tasks = [int(one) for one in os.listdir("/proc/self/task")] + [child.pid]
    print(sorted(cores.indices), [sorted(os.sched_getaffinity(task)) for task in tasks], flush=True)
tell()
thread.join()
cores.share_among(1)
tell()
child.communicate(b"\\n")
"""


@pytest.fixture
def worker(tmp_path):
    processes = []

    def start(workers):
        command = [sys.executable, "-c", WORKER, str(workers)]
        environment = {**os.environ, FOLDER_VARIABLE: str(tmp_path)}
        processes.append(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def told(process):
    held, _, tasks = process.stdout.readline().partition("] ")
    return [int(n) for n in held.strip("[").split(",") if n.strip()], eval(tasks)


def test_workers_run_on_different_cores_with_all_that_they_start(worker):
    first, second = worker(2), worker(2)
    (ours, our_tasks), (theirs, their_tasks) = told(first), told(second)

    assert set(ours).isdisjoint(theirs)
    assert len(ours) == len(theirs) == len(os.sched_getaffinity(0)) // 2
    assert all(task == ours for task in our_tasks)
    assert all(task == theirs for task in their_tasks)


def test_who_is_left_takes_the_cores_of_those_that_ended(worker):
    first, second = worker(2), worker(2)
    told(first), told(second)
    second.kill()
    second.wait()
    first.stdin.write("\n")
    first.stdin.flush()
    ours, tasks = told(first)

    assert len(ours) == 2 * (len(os.sched_getaffinity(0)) // 2)
    assert all(task == ours for task in tasks)


def test_more_workers_than_cores_run_where_the_system_puts_them(worker):
    held, tasks = told(worker(1 + len(os.sched_getaffinity(0))))

    assert held == []
    assert all(task == sorted(os.sched_getaffinity(0)) for task in tasks)
