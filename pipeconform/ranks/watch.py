"""Decides when to give up on ranks that do not answer: on evidence of a hang, or at the time limit."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipeconform.ranks.evidence import Look, Share, look, progressed, share, withheld
from pipeconform.ranks.protocols import Eyes

__all__ = ["Limits", "LocalEyes", "Watch"]

_LONGEST = 5.0  # times the time limit, by the clock, however busy the machine is


@dataclass(frozen=True)
class Limits:
    """Patience, all in seconds.

    ``time``: for the whole task; time in which others took the processors away from the unanswered ranks does not
    count, up to four times as much. ``idle``: while no unanswered rank progresses. ``idle_after_failure``:
    the same once a rank has raised or died, because the others then most likely wait for it.
    """

    time: float
    idle: float = 2.0
    idle_after_failure: float = 0.2


class Watch:
    """Watches the unanswered ranks of one task that started at ``started``, in the seconds of ``clock``."""

    def __init__(
        self, limits: Limits, *, started: float, eyes: Eyes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._eyes = eyes
        self._started = started
        self._idle = 0.0
        self._checked = clock()
        self._events: tuple[object, ...] = ()
        self._failed = False

    @property
    def idle(self) -> float:
        """For how many seconds no unanswered rank has been seen to progress."""
        return self._idle

    @property
    def interval(self) -> float:
        """Seconds until the next check is worthwhile."""
        limit = self._limits.idle_after_failure if self._failed else self._limits.idle
        left = self._limits.time - (self._clock() - self._started)
        return max(0.001, min(0.1, limit / 8, left if left > 0 else 0.1))

    def hold(self) -> None:
        """Count none of the time since the last look: a rank waits for its user."""
        now = self._clock()
        self._started += now - self._checked
        self._checked, self._idle = now, 0.0

    def check(
        self, waiting: Sequence[int], *, answering: bool, moved: int, failure: str | None
    ) -> str | None:
        """Return why to give up, or None.

        ``waiting`` are the unanswered ranks, ``moved`` counts bytes to and from them,
        ``answering`` says that one of them is sending its answer, and ``failure`` names the first rank that
        raised or died.
        """
        now = self._clock()
        if now - self._started >= self._limits.time and not answering:
            held = self._eyes.withheld(waiting)
            if now - self._started >= min(self._limits.time + held, _LONGEST * self._limits.time):
                return f"time limit of {self._limits.time:g} s"  # the same words however busy the machine is
        self._failed = failure is not None
        if now - self._checked < self.interval / 2:
            return None  # woken by an answer; two looks need some time between them
        # A controller that was itself held up has seen nothing of that time.
        gap = min(now - self._checked, 2 * self.interval)
        self._checked = now
        events = (len(waiting), moved, failure)
        if self._eyes.progress(waiting) or events != self._events:
            self._events = events
            self._idle = 0.0
            return None
        self._idle += gap
        if failure is not None:
            late = self._idle >= self._limits.idle_after_failure
            return f"waited {self._idle:.2f} s after {failure}" if late else None
        late = self._idle >= self._limits.idle
        return f"no rank used CPU time for {self._idle:.1f} s" if late else None


class LocalEyes:
    """Looks at processes of this machine; ``pids`` maps ranks to process ids."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._pids = pids
        self._looks: dict[int, Look] = {}
        self._begun: dict[int, Share] = {}
        self._suspect: int | None = None  # the rank that progressed last is looked at first

    def stopped(self, rank: int) -> bool:
        """Whether ``rank`` was held by a signal when last looked at."""
        seen = self._looks.get(rank)
        return seen is not None and seen.stopped

    def progress(self, ranks: Sequence[int]) -> bool:
        """Whether any of ``ranks`` progressed between the last look at it and now."""
        fresh = False
        if not self._begun:
            self._begun = self._shares(self._pids)
        for rank in sorted(ranks, key=lambda rank: rank != self._suspect):
            before, now = self._looks.get(rank), look(self._pids[rank])
            if now is None:  # nothing can be seen: it just ended, or the system has no /proc
                return True
            self._looks[rank] = now
            if before is None:
                fresh = True
            elif progressed(before, after=now):
                self._suspect = rank
                return True
        return fresh

    def withheld(self, ranks: Sequence[int]) -> float:
        """For how many seconds others took the processors away from ``ranks`` since the first look."""
        now = self._shares(rank for rank in ranks if rank in self._begun)
        return withheld([now[rank] - self._begun[rank] for rank in now], cores=self._cores())

    def _shares(self, ranks: Iterable[int]) -> dict[int, Share]:
        seen = ((rank, share(self._pids[rank])) for rank in ranks)
        return {rank: one for rank, one in seen if one is not None}

    def _cores(self) -> int:
        """How many processors a rank may use: all may use the same."""
        for pid in self._pids.values():
            # it has ended; other systems have no such call
            with contextlib.suppress(OSError, AttributeError):
                return len(os.sched_getaffinity(pid))
        return os.cpu_count() or 1
