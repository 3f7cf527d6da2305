"""Numbers the forwards of a rank's stages, for what is recorded about each."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

__all__ = ["Forwards"]


class Forwards:
    """Counts forwards in the order in which they begin; each thread has one that it runs."""

    def __init__(self) -> None:
        self._calls = itertools.count()
        self._here = threading.local()

    def __deepcopy__(self, memo: object) -> Self:
        """Keep watching when an engine copies a stage."""
        return self

    @property
    def call(self) -> int:
        """The number of the forward that runs in this thread, −1 outside of any."""
        found: int = getattr(self._here, "call", -1)
        return found

    @contextmanager
    def numbered(self) -> Iterator[int]:
        """Surround one forward; yields its number. A forward may run inside another one."""
        outer, self._here.call = self.call, next(self._calls)
        try:
            yield self.call
        finally:
            self._here.call = outer
