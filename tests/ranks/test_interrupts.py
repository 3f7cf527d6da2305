"""Interrupts whose exception is lost."""

import os
import signal
import time

import pytest

from pipeconform.ranks.interrupts import remembered_interrupts, sigterm_raises


class Last:
    def __init__(self, signum):
        self.signum = signum

    def __del__(self):
        os.kill(os.getpid(), self.signum)
        time.sleep(5)  # the exception ends it, and Python says so and goes on


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_a_finalizer_loses_is_remembered(signum):
    with sigterm_raises(KeyboardInterrupt()), remembered_interrupts() as interrupts:
        assert not interrupts.asked
        Last(signum)
        assert interrupts.asked
