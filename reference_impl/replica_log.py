"""What a wrapper reports on itself: where it is, what it has reduced, and how long that took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Log"]


class Log:
    """Counts passes, and measures one in `rate` of them."""

    def __init__(self) -> None:
        self.rate, self.passes, self.seconds = 1, 0, 0.0

    def set_rate(self, rate: int) -> None:
        """Measure one pass in `rate`.

        Raises:
            ValueError: It is below one.
        """
        if rate < 1:
            raise ValueError(f"the logging rate is a number of passes, at least 1, not {rate}")
        self.rate = rate

    @contextmanager
    def reducing(self) -> Iterator[None]:
        """Surround the wait for a pass's reductions."""
        begun, self.passes = time.perf_counter(), self.passes + 1
        yield
        if self.passes % self.rate == 0:
            self.seconds = time.perf_counter() - begun
