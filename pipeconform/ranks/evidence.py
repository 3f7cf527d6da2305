"""Evidence of progress: does a process still compute, or does it only wait?

A rank progresses between two looks at it when any of its threads, or of its descendants' threads,

- used the processor for at least 2 % of the time between the looks, or
- wanted the processor and did not get it (a loaded machine must not look like a hang), or
- waits for a disk (state D),

or if it has ended: whoever started it will report that, however busy the machine, and a dead rank is not stuck.

The 2 % is there because a healthy but idle rank is never quite still: gloo's event loop wakes a hundred
times a second and uses about 0.3 % (measured, torch 2.13), and new groups add loops of their own. A thread that
polls as rarely as that does not progress. A stopped process does not progress either.

That event loop has another habit: once the tensor of a send is gone that was not waited for, it spins for ever, and
moves nothing. So a thread that only moves bytes progresses if bytes moved, not if it used the processor.

Without ``/proc`` nothing can be observed, everything counts as progress, and only the time limit is left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Look", "Share", "ended", "look", "progressed", "share", "withheld"]

_BUSY_SHARE = 0.02  # of one core, per thread
_STARVED_SHARE = 0.75  # of the time spent in the run queue, per thread
_TRANSPORTS = frozenset({"gloo_tcp_loop"})  # threads that move bytes and do nothing else
_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")  # nanoseconds


@dataclass(frozen=True)
class _Thread:
    state: str
    used: int  # nanoseconds on a processor
    queued: int  # nanoseconds runnable without one
    slices: int  # times it got one
    moved: int | None = (
        None  # bytes that a transport's thread read and wrote; None if unknown, and for others
    )


@dataclass(frozen=True)
class Look:
    """The threads of a process and its descendants at one moment, in seconds of ``time.monotonic()``."""

    moment: float
    threads: dict[str, _Thread]

    @property
    def stopped(self) -> bool:
        """Whether a signal or a debugger holds the whole process."""
        return bool(self.threads) and all(thread.state in "Tt" for thread in self.threads.values())

    @property
    def ended(self) -> bool:
        """Whether the process has ended and was not reaped yet."""
        return bool(self.threads) and all(thread.state in "ZX" for thread in self.threads.values())


@dataclass(frozen=True)
class Share:
    """What a process's main thread has had of the processors, in seconds."""

    used: float
    queued: float
    """Runnable, without a processor."""

    def __sub__(self, other: Share) -> Share:
        return Share(self.used - other.used, self.queued - other.queued)


def share(pid: int) -> Share | None:
    """What process ``pid`` has had so far; None if it has ended, or the system does not tell."""
    try:
        used, queued, _ = (int(field) for field in _read(f"/proc/{pid}/schedstat").split())
    except (OSError, ValueError):
        return None
    return Share(used / 1e9, queued / 1e9)


def withheld(shares: Sequence[Share], *, cores: int) -> float:
    """For how many seconds others took the processors away from a world whose ranks have had ``shares``.

    Ranks on few cores also wait for each other. While they do, all their cores are used, so the time in which one of
    them wanted a processor is what the world was given on its cores, and what was withheld.
    """
    if not shares:
        return 0.0
    given = sum(one.used for one in shares) / min(len(shares), max(cores, 1))
    wanted = max(one.used + one.queued for one in shares)
    return max(0.0, min(max(one.queued for one in shares), wanted - given))


def look(pid: int) -> Look | None:
    """Look at process ``pid``; None if it cannot be observed."""
    threads = dict(_threads(pid, depth=0))
    return Look(moment=time.monotonic(), threads=threads) if threads else None


def ended(pid: int) -> bool:
    """Whether process ``pid`` has ended, reaped or not; False where there is no ``/proc``."""
    try:
        return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return os.path.exists("/proc/self/stat")


def progressed(before: Look, *, after: Look) -> bool:
    """Whether the process ran, tried to run or waited for a disk between two looks, or has ended."""
    elapsed = (after.moment - before.moment) * 1e9
    return after.ended or any(
        _progressed(before.threads.get(name), thread, elapsed) for name, thread in after.threads.items()
    )


def _progressed(before: _Thread | None, after: _Thread, elapsed: float) -> bool:
    if before is None:  # a new thread: all that it did, it did since
        before = _Thread(state="", used=0, queued=0, slices=-1)
    if after.moved is not None:
        has_no_turn = after.state == "R" and after.slices == before.slices
        return after.moved != before.moved or has_no_turn or after.state == "D"
    if after.used - before.used >= _BUSY_SHARE * elapsed or after.state == "D":
        return True
    starved = after.state == "R" and after.slices == before.slices
    return starved or after.queued - before.queued >= _STARVED_SHARE * elapsed


def _threads(pid: int, *, depth: int) -> Iterator[tuple[str, _Thread]]:
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for name in names:
        folder = f"/proc/{pid}/task/{name}"
        try:
            thread = _thread(folder)
            children = _read(f"{folder}/children").split()
        except (OSError, ValueError, IndexError):  # it ended meanwhile
            continue
        yield f"{pid}/{name}", thread
        if depth < 4:  # compilers' drivers and the like; deeper trees are not a rank's work
            for child in children:
                yield from _threads(int(child), depth=depth + 1)


def _thread(folder: str) -> _Thread:
    name, _, rest = _read(f"{folder}/stat").partition("(")[2].rpartition(")")
    fields = rest.split()
    moved = _moved(folder) if name in _TRANSPORTS else None
    try:
        used, queued, slices = (int(field) for field in _read(f"{folder}/schedstat").split())
    except (OSError, ValueError):  # a kernel without scheduler statistics: clock ticks, state R is progress
        used, queued, slices = (int(fields[11]) + int(fields[12])) * _TICK, 0, -1
    return _Thread(state=fields[0], used=used, queued=queued, slices=slices, moved=moved)


def _moved(folder: str) -> int | None:
    try:
        counts = dict(line.split(": ") for line in _read(f"{folder}/io").splitlines())
        return int(counts["rchar"]) + int(counts["wchar"])
    except (OSError, ValueError, KeyError):  # a kernel without these counts, or one that does not show them
        return None


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096).decode()
    finally:
        os.close(descriptor)
