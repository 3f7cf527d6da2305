"""How near accepted values come to their bounds."""

from __future__ import annotations

import math

__all__ = ["Gauge"]


class Gauge:
    """Keeps the largest ratio of a difference to its bound among values that were accepted.

    At most 1: beyond it a value is not accepted. None as long as no value needed its bound to be accepted.
    """

    def __init__(self) -> None:
        self.worst: float | None = None

    def note(self, ratio: float) -> None:
        """Tell of one value. What is not finite says nothing: equal infinities, for instance."""
        if math.isfinite(ratio):
            self.worst = max(ratio, self.worst or 0.0)
