"""Importing modules that stay until the process ends."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_collecting"]


@contextmanager
def without_collecting() -> Iterator[None]:
    """Look for no garbage while modules are imported: they are none, and looking takes a fifth of torch's import."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
