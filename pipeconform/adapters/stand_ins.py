"""Stands in for packages that an engine imports and that what is judged of it does not use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["stand_in_for", "standing_in_for"]


class _StandIn(ModuleType):
    """A module whose every name is a class, which others can derive from, a type hint can name, and nothing is of."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (), {}))
        return getattr(self, name)


def stand_in_for(*names: str) -> tuple[str, ...]:
    """Put stand-ins for those modules of which the package is not installed; return their names.

    A module that has a stand-in keeps it.
    """
    missing = tuple(
        name for name in names if name not in sys.modules and find_spec(name.partition(".")[0]) is None
    )
    sys.modules.update({name: _StandIn(name) for name in missing})
    return missing


@contextmanager
def standing_in_for(*names: str) -> Iterator[None]:
    """The same while an engine is imported: whoever asks afterwards is told that they are not installed."""
    missing = stand_in_for(*names)
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]
