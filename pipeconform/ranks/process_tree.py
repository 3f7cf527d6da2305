"""Parents, children and sessions of processes: kernel calls, each a no-op where the system has none."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

__all__ = ["adopt_orphans", "children_of", "die_with_parent", "end_session", "started_at"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SESSION = 3  # of the fields of /proc/PID/stat that follow the name: state, parent, group, session
_STARTED = 19


def die_with_parent(*, parent: int) -> None:
    """Have the kernel kill this process when its parent ends; ``parent`` is its id at the fork."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(pid: int) -> set[int]:
    """Return the children of all threads of ``pid`` that are alive or not reaped; empty if unknown."""
    children: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in list(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(OSError):  # that thread has ended; its children are another one's now
                children.update(int(child) for child in (thread / "children").read_text().split())
    return children


def started_at(pid: int) -> int:
    """When a process was started, in the kernel's ticks since the host was; 0 if it has ended or that is unknown.

    With its number, this identifies a process: the kernel gives numbers to others later.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if fields[0] in ("Z", "X") else int(fields[_STARTED])
    return 0


def end_session(leader: int) -> None:
    """Kill what is left of the session of ``leader``, which has ended; does nothing if the session is unknown.

    The kernel does not reuse the number while a process is in the session.
    """
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = status.read_text().rpartition(")")[2].split()  # a name may hold anything
            if int(fields[_SESSION]) == leader:
                os.kill(int(status.parent.name), signal.SIGKILL)


def _prctl(option: int, argument: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)
