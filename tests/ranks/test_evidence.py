"""What counts as progress, seen on real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pipeconform.ranks.evidence import Share, ended, look, progressed, share, withheld

PAUSE = 0.2  # seconds between two looks
FEW = 3
LOOKS = 50  # at most; one window may see nothing on a machine whose host gives its cores to others


@contextmanager
def _process(code: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", f"import time, threading\nprint('up', flush=True)\n{code}"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            # its children, too: a busy one would outlive the tests
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _windows(process: subprocess.Popen[str]) -> Iterator[bool]:
    """Whether the process progressed between two looks, window after window."""
    time.sleep(PAUSE)  # past what it did to start
    before = look(process.pid)
    for _ in range(LOOKS):
        time.sleep(PAUSE)
        after = look(process.pid)
        assert before is not None
        assert after is not None
        yield progressed(before, after=after)
        before = after


def _progresses(process: subprocess.Popen[str]) -> bool:
    return any(_windows(process))


def _rests(process: subprocess.Popen[str]) -> bool:
    """Whether it rests in most windows; on a busy machine, one that wakes up waits for its turn now and then."""
    resting = moving = 0
    for moved in _windows(process):
        moving, resting = moving + moved, resting + (not moved)
        if resting >= FEW and resting >= 3 * moving:
            return True
    return False


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("while True: pass", True),
        ("time.sleep(3600)", False),
        ("while True: time.sleep(0.01)", False),
        ("threading.Thread(target=exec, args=('while True: pass',)).start()\ntime.sleep(3600)", True),
        ("import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])", True),
    ],
    ids=["computes", "sleeps", "polls", "computes in a thread", "computes in a child"],
)
def test_progress_is_computing(code, expected):
    with _process(code) as process:
        assert _progresses(process) if expected else _rests(process)


NAMED = """
import ctypes, os, socket
def transport(work):
    ctypes.CDLL(None).prctl(15, b"gloo_tcp_loop", 0, 0, 0)  # PR_SET_NAME
    a, b = socket.socketpair()
    while True:
        work(a.fileno(), b.fileno())
def spins(a, b):
    pass
def moves(a, b):
    os.write(a, b"x"), os.read(b, 1)
threading.Thread(target=transport, args=({work},)).start()
time.sleep(3600)
"""


@pytest.mark.parametrize(("work", "expected"), [("spins", False), ("moves", True)])
def test_a_transport_progresses_if_it_moves_bytes(work, expected):
    with _process(NAMED.format(work=work)) as process:
        assert _progresses(process) if expected else _rests(process)


def test_a_stopped_process_does_not_progress():
    with _process("while True: pass") as process:
        process.send_signal(signal.SIGSTOP)
        assert _rests(process)
        seen = look(process.pid)
        assert seen is not None
        assert seen.stopped


def test_many_computing_processes_on_few_cores_all_progress():
    busy = "while True: pass"
    with _process(busy) as one, _process(busy) as two, _process(busy) as three:
        assert all(_progresses(process) for process in (one, two, three))


def test_an_ended_process_shows_nothing():
    with _process("") as process:
        process.wait()
        assert look(process.pid) is None


def test_a_process_has_ended_when_it_is_killed_and_when_it_is_reaped():
    with _process("time.sleep(60)") as process:
        assert not ended(process.pid)
        process.kill()
        time.sleep(PAUSE)
        assert ended(process.pid), "a zombie"
        process.wait()
        assert ended(process.pid)


def test_a_process_that_ended_and_was_not_reaped_is_not_idle():
    """Its end is reported soon: until then nobody may say that it is stuck."""
    with _process("time.sleep(60)") as process:
        before = look(process.pid)
        assert not before.ended
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        after = look(process.pid)
        assert after.ended
        assert not after.stopped
        assert progressed(after, after=after)


# ------------------------------------------------------------- processors that others had (withheld)


@pytest.mark.parametrize(
    ("shares", "cores", "seconds"),
    [
        ([], 2, 0.0),
        ([(60, 0)], 2, 0.0),  # it had a processor all the time
        ([(0, 0), (0, 0)], 2, 0.0),  # all sleep
        ([(15, 45)] * 4, 1, 0.0),  # four that compute take turns on the core that they have
        ([(30, 30)] * 4, 2, 0.0),
        ([(10, 50), (0, 0)], 2, 50.0),  # one computes, the other waits for it
        ([(5, 55)] * 4, 1, 40.0),  # eight more on the same core
        ([(20, 0), (20, 0), (20, 0)], 1, 0.0),  # one after the other
        ([(50, 10)], 1, 10.0),
    ],
)
def test_what_ranks_take_from_each_other_is_not_withheld(shares, cores, seconds):
    assert withheld([Share(float(used), float(queued)) for used, queued in shares], cores=cores) == seconds


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no system call to share a core")
def test_two_that_spin_on_one_core_take_it_from_each_other():
    core = {min(os.sched_getaffinity(0))}
    with _process("while True: pass") as rank, _process("while True: pass") as other:
        for process in (rank, other):
            os.sched_setaffinity(process.pid, core)
        begun, moment = share(rank.pid), time.monotonic()
        while (now := share(rank.pid)) is not None and time.monotonic() - moment < 60.0:
            assert begun is not None
            if withheld([now - begun], cores=1) >= 0.3:  # half of 0.6 s, later on a busy machine
                break
            time.sleep(0.05)
        assert now is not None
        assert begun is not None
        assert now.used > begun.used
        assert 0.3 <= withheld([now - begun], cores=1) <= time.monotonic() - moment


def test_of_a_process_that_has_ended_no_share_is_known():
    with _process("pass") as process:
        process.wait()
    assert share(process.pid) is None
    assert share(2**22 + 1) is None
