"""Where a judgement stands in its file."""

from __future__ import annotations

import inspect
from collections.abc import Callable

__all__ = ["first_line"]


def first_line(function: Callable[..., object]) -> int:
    """The line on which a function begins, its decorators included; `inspect.getsourcelines` would read the file."""
    line: int = inspect.unwrap(function).__code__.co_firstlineno
    return line
