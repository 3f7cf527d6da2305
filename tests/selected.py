"""Which of many like cases the quick tests take: the first of each kind, and of the others a tenth."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
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
