"""Waiting for what comes by itself, on a busy machine later than on a quiet one."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["until"]


def until(condition: Callable[[], object], *, limit: float = 60.0, told: Callable[[], object] = str) -> None:
    """Return as soon as the condition holds; after ``limit`` seconds fail, and say what `told` returns."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"it never came {told()}"
        time.sleep(0.01)
