"""An adapter with a violation that takes its time, so that a disaster meets a run in the middle of something."""

import os
import time

from pipeconform.reference_impl.faults.scale import NotDivided

PATIENCE = float(os.environ.get("PATIENCE", "1"))  # seconds for every world that is built


class Patient(NotDivided):
    """Is slow without being stuck: a rank that sleeps for long would be taken for one that hangs."""

    def build(self, *given, **more):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            sum(range(100_000))
            time.sleep(0.05)
        return super().build(*given, **more)
