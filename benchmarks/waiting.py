"""An engine that waits, as one waits whose ranks are on devices or hosts of their own, and leaves the cores free.

See workers.py.
"""

from __future__ import annotations

import os
import time

from reference_impl.adapter import ReferenceAdapter

SECONDS = float(os.environ.get("WAITING", "0.5"))  # for every world that is built


class Waiting(ReferenceAdapter):
    """The reference, slowly; never still for so long that it looks stuck."""

    def build(self, *given, **more):
        """Wait, then build as the reference does."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            sum(range(1_000))
            time.sleep(0.05)
        return super().build(*given, **more)
