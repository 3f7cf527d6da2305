"""What a judgement did beside what it found: how much it compared, how near accepted values came to their bounds."""

from __future__ import annotations

import math

__all__ = ["Gauge", "Uncounted"]


class Gauge:
    """Counts what a judgement compares, and keeps the largest ratio of a difference to its bound among accepted values.

    The ratio is at most 1: beyond it a value is not accepted. It is None as long as no value needed its bound.
    """

    def __init__(self) -> None:
        self.worst: float | None = None
        self.compared = 0
        """Values, orders, counts and answers that were held against what is right."""

    def note(self, ratio: float) -> None:
        """Take one accepted value into account. What is not finite says nothing: equal infinities, for instance."""
        if math.isfinite(ratio):
            self.worst = max(ratio, self.worst or 0.0)

    def count(self, number: int = 1) -> None:
        """Take so many comparisons into account."""
        self.compared += number


class Uncounted(Gauge):
    """Passes on how near values came to their bounds, and does not count."""

    def __init__(self, gauge: Gauge) -> None:
        super().__init__()
        self._gauge = gauge

    def note(self, ratio: float) -> None:
        """Pass on."""
        self._gauge.note(ratio)

    def count(self, number: int = 1) -> None:
        """Leave out of account."""
