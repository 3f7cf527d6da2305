"""Of long tests that are many of a kind, a tenth that runs with the quick ones; ten numbers have them all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

__all__ = ["long", "mark", "part_of", "take"]

mark = (pytest.mark.slow, pytest.mark.in_tenths)
"""What such a test is marked with."""
_TestT = TypeVar("_TestT", bound=Callable[..., object])


def long(test: _TestT) -> _TestT:
    """A test that takes seconds of processor time and whose subject quicker tests are about, too."""
    for one in mark:
        test = one(test)
    return test


def part_of(name: str, *, parts: int) -> int:
    """Which of so many parts of the tests, about alike, a test is in."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % parts


def tenth_of(name: str) -> int:
    """Which tenth a test is in."""
    return part_of(name, parts=10)


def take(items: Iterable[pytest.Item], *, number: int) -> None:
    """Let the tests of a tenth (of the number's last digit) be quick ones."""
    for item in items:
        if item.get_closest_marker("in_tenths") and tenth_of(item.nodeid) == number % 10:
            item.own_markers = [one for one in item.own_markers if one.name != "slow"]
