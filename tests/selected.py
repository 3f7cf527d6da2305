"""Which of many like cases the quick tests take: one of each kind, and of the others a tenth."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

from tests import tenths

_T = TypeVar("_T")


def first_of_each(named: Mapping[str, _T], kind: Callable[[_T], Hashable]) -> list[Any]:
    """The values as parameters of a test, by name; all but the first of each kind marked as long."""
    seen: set[Hashable] = set()
    found = []
    for name, value in named.items():
        marks = tenths.mark if kind(value) in seen else ()
        seen.add(kind(value))
        found.append(pytest.param(value, id=name, marks=marks))
    return found


def crossed(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """All pairs as parameters of a test; as many as have every value once are quick, the others are marked as long."""
    most = max(len(first), len(second))
    quick = {(i % len(first), i % len(second)) for i in range(most)}
    return [
        pytest.param(one, other, marks=() if (i, j) in quick else tenths.mark)
        for i, one in enumerate(first)
        for j, other in enumerate(second)
    ]
