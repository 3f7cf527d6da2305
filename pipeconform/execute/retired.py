"""Ending process groups beside the next case instead of after the last one.

gloo's threads look up from waiting every ten milliseconds, and ending a group waits for each of them: 20 to
30 ms in which nothing happens, at the end of every case. A retired group is let go by a thread of its own
once the next case has begun. It is let go before the case after that, so that a group that cannot end is
still a rank that is stuck.
"""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Retired"]


class Retired:
    """Objects whose end takes time and no processor."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._thread: threading.Thread | None = None

    def add(self, group: Any) -> None:
        """Keep `group` until the next `release`, when nobody else holds it any more."""
        self._kept.append(group)

    def release(self) -> None:
        """Let go of what was added, in the background; what was let go before has ended when this returns."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._kept:
            kept, self._kept = self._kept, []
            self._thread = threading.Thread(target=kept.clear, daemon=True)
            self._thread.start()
