"""A rank is looked at only where a look can do no harm."""

import gc
import sys
import threading
import time

import pytest

from pipeconform.ranks import examiner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel whether a thread sleeps")


@pytest.fixture
def looks(monkeypatch):
    """How often frames of threads were asked for; and what held while they were."""
    seen, real = [], sys._current_frames

    def look():
        seen.append((sys.getswitchinterval(), gc.isenabled()))
        return real()

    monkeypatch.setattr(examiner.sys, "_current_frames", look)
    return seen


def asked_while(doing):
    """The standing that another thread tells of this one while it does something."""
    told, before = [], (sys.getswitchinterval(), gc.isenabled())
    asking = threading.Thread(target=lambda: told.append(examiner._standing()))
    asking.start()
    doing(asking)
    asking.join()

    assert (sys.getswitchinterval(), gc.isenabled()) == before
    return told[0]


def compute(asking):
    """As a task does that is busy; a look at its frames may end the process."""
    while asking.is_alive():
        sum(range(1000))


def sleep(asking):
    """As a task does that waits in native code."""
    time.sleep(0.5)


def test_the_frames_of_a_thread_that_runs_are_not_looked_at(looks):
    standing = asked_while(compute)

    assert not looks
    assert (standing.doing, standing.wait) == ("", None)


def test_those_of_a_thread_that_sleeps_are_looked_at_undisturbed(looks):
    asked_while(sleep)

    assert looks == [(examiner._TURN, False)]


def test_who_else_there_is_is_known_without_a_look(looks):
    ends = threading.Event()
    other = threading.Thread(target=ends.wait)
    other.start()
    accompanied = asked_while(compute)
    ends.set()
    other.join()

    assert not accompanied.alone  # that a rank can be alone, proofs of deadlocks show
    assert not looks


def test_a_task_that_waits_in_code_of_its_own_says_so(looks):
    before = asked_while(compute)
    with examiner.waiting_for_others("raised ValueError, waits for the others"):
        inside = asked_while(compute)
    outside = asked_while(compute)

    assert (inside.doing, inside.in_harness) == ("raised ValueError, waits for the others", True)
    assert (outside.doing, outside.in_harness) == ("", False)
    assert before.alone == inside.alone
