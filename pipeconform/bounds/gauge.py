"""Measures of a judgement: how much it compared, and how close accepted values came to their bounds."""

from __future__ import annotations

import math

__all__ = ["Gauge", "Uncounted"]


class Gauge:
    """Counts comparisons, and keeps the largest ratio of a difference to its bound among accepted values.

    The ratio is at most 1, because larger ones are not accepted, and None as long as no value needed its bound.
    """

    def __init__(self) -> None:
        self.worst: float | None = None
        self.compared = 0
        """The number of values, orders, counts and answers that were compared with the right ones."""

    def note(self, ratio: float) -> None:
        """Take the ratio of one accepted value into account, unless it is not finite (as for equal infinities)."""
        if math.isfinite(ratio):
            self.worst = max(ratio, self.worst or 0.0)

    def count(self, number: int = 1) -> None:
        """Add `number` comparisons."""
        self.compared += number


class Uncounted(Gauge):
    """Passes on how close values came to their bounds, but does not count comparisons."""

    def __init__(self, gauge: Gauge) -> None:
        super().__init__()
        self._gauge = gauge

    def note(self, ratio: float) -> None:
        """Pass the ratio on."""
        self._gauge.note(ratio)

    def count(self, number: int = 1) -> None:
        """Ignore the comparisons."""
