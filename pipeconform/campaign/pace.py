"""How long a case may take once another has used up the time limit."""

from __future__ import annotations

from pipeconform.ranks.verdict import Returned, Stuck, VerdictVector

__all__ = ["Pace"]

_LEAST = 10.0  # seconds
_TIMES = 20  # as long as the slowest case that returned


class Pace:
    """What cases have taken so far, in seconds, and under which schedules one used up the time limit.

    A rank that polls while it waits cannot be told from one that computes, so that such a hang costs the whole limit.
    Under the same schedule it would cost it again for every case, and for every execution that makes one small.
    """

    def __init__(self) -> None:
        self._slowest = 0.0
        self._expired: set[str] = set()

    def limit(self, time_limit: float, *, schedule: str, compiles: bool) -> float:
        """The time limit for a case: `time_limit`, or what cases that return are far from where one has used that up.

        Compiling takes as long as it takes, so that such cases keep their limit.
        """
        if compiles or not self._slowest or schedule not in self._expired:
            return time_limit
        return min(time_limit, max(_LEAST, _TIMES * self._slowest))

    def note(self, vector: VerdictVector, *, schedule: str, time_limit: float) -> None:
        """What a case that had so much time has shown."""
        if vector.ok:
            self._slowest = max(self._slowest, *(one.after for one in vector if isinstance(one, Returned)))
        elif any(isinstance(one, Stuck) and one.seconds >= time_limit for one in vector):
            self._expired.add(schedule)
