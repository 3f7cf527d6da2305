"""Leases processor cores from the host for one of several workers, so that they do not take turns on one core."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeconform.errors import UsageError
from pipeconform.ranks.leases import Lease, Leases
from pipeconform.ranks.process_tree import children_of

__all__ = ["Cores"]


class Cores:
    """Keeps this process and its descendants on its share of the cores, or on none in particular if there are too few.

    If several runs share a host, later ones may find no core free: they run where the system puts them.
    """

    def __init__(self, *, workers: int, folder: Path | None = None) -> None:
        self._workers, self._lease = workers, Lease({})
        self._known: list[int] = []
        self._leases: Leases | None = None
        if sys.platform != "linux":  # nowhere else can a process be kept on a core
            return
        self._known = sorted(os.sched_getaffinity(0))
        with contextlib.suppress(UsageError):
            self._leases = Leases("core", tuple(map(str, self._known)), folder=folder)
        self._want(len(self._known) // workers)

    @property
    def indices(self) -> tuple[int, ...]:
        """The cores that are held."""
        return tuple(self._known[index] for index in self._lease.indices)

    def share_among(self, workers: int) -> None:
        """Lease a part of the cores of workers that have ended; `workers` are left."""
        if self._lease.indices and workers < self._workers:
            self._workers = workers
            self._want(len(self._known) // max(workers, 1))

    def _want(self, number: int) -> None:
        more = number - len(self._lease.indices)
        found = None if self._leases is None or more < 1 else self._leases.try_take(more)
        if found is not None:
            self._lease.add(found)
            for task in _tasks(os.getpid()):
                with contextlib.suppress(OSError):  # it has ended
                    os.sched_setaffinity(task, self.indices)

    def release(self) -> None:
        """Release the cores for others; this process stays on them, because it is about to end."""
        self._lease.release()


def _tasks(pid: int) -> Iterator[int]:
    """The threads of a process and of all its descendants."""
    with contextlib.suppress(OSError):
        yield from [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    for child in children_of(pid):
        yield from _tasks(child)
