"""Which of many like cases the quick tests take: the first of each kind; the others are among the long tests."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import pytest

_T = TypeVar("_T")


def first_of_each(named: Mapping[str, _T], kind: Callable[[_T], Hashable]) -> list[Any]:
    """The values as parameters of a test, by name; all but the first of each kind marked as slow."""
    seen: set[Hashable] = set()
    found = []
    for name, value in named.items():
        marks = (pytest.mark.slow,) if kind(value) in seen else ()
        seen.add(kind(value))
        found.append(pytest.param(value, id=name, marks=marks))
    return found
