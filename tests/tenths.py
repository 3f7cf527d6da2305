"""Of long tests that are many of a kind, a tenth that runs with the quick ones; ten numbers have them all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pytest

__all__ = ["mark", "take"]

mark = (pytest.mark.slow, pytest.mark.in_tenths)
"""What such a test is marked with."""


def tenth_of(name: str) -> int:
    """Which tenth a test is in."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10


def take(items: Iterable[pytest.Item], *, number: int) -> None:
    """Let the tests of a tenth (of the number's last digit) be quick ones."""
    for item in items:
        if item.get_closest_marker("in_tenths") and tenth_of(item.nodeid) == number % 10:
            item.own_markers = [one for one in item.own_markers if one.name != "slow"]
