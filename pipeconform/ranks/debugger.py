"""Opens Python's debugger in one rank, on the terminal of the controller (``replay --pdb``).

The controller names the rank, its terminal and a file in a variable of the ranks' environment, `VARIABLE`. In that rank
``breakpoint()`` opens the debugger, and so does an exception that ends a task, where it was raised. While it is
open, a marker in the folder of the rank group says so, and the pool waits (`is_open`). Quitting it closes it for good,
also for later tasks and processes: the task goes on.
"""

from __future__ import annotations

import os
import pdb
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["VARIABLE", "Request", "install", "is_open", "post_mortem"]

VARIABLE = "PIPECONFORM_PDB"
_MARKER = "debugger-open"


@dataclass(frozen=True, kw_only=True)
class Request:
    """Which rank is debugged, on which terminal; the file `closed` exists when the user has quit."""

    rank: int
    terminal: str
    closed: str

    def __str__(self) -> str:
        """The variable's value."""
        return f"{self.rank}:{self.terminal}:{self.closed}"

    @classmethod
    def of(cls, text: str | None) -> Request | None:
        """Read the variable's value; None if it is not set."""
        if not text:
            return None
        rank, terminal, closed = text.split(":", 2)
        return cls(rank=int(rank), terminal=terminal, closed=closed)


def is_open(folder: Path) -> bool:
    """Whether a rank of the group with this folder is in the debugger."""
    return (folder / _MARKER).exists()


class _Debugger(pdb.Pdb):
    """Reads and writes a terminal; to quit ends no task."""

    def __init__(self, request: Request, marker: Path) -> None:
        terminal = {mode: open(request.terminal, mode, opener=_not_ours) for mode in ("r", "w")}  # noqa: SIM115 - open for good
        super().__init__(stdin=terminal["r"], stdout=terminal["w"], nosigint=True, readrc=False)
        self.prompt = f"(Pdb, rank {request.rank}) "
        self._closed, self._marker = Path(request.closed), marker

    def interaction(self, *stop: Any) -> None:
        """Ask for commands until one goes on; meanwhile the pool waits."""
        self._marker.touch()
        try:
            super().interaction(*stop)
        finally:
            self._marker.unlink(missing_ok=True)

    def say(self, why: str) -> None:
        """Say why the debugger opens."""
        self.message(f"\n{why} (q closes the debugger, and the case goes on; meanwhile the other ranks wait)")

    def do_quit(self, arg: str) -> bool:
        """Close the debugger; the program goes on without it."""
        self._closed.touch()
        self.clear_all_breaks()
        self.set_continue()
        return True

    do_q = do_exit = do_EOF = do_quit  # noqa: N815 - pdb finds its commands by these names


def _not_ours(path: str, flags: int) -> int:
    """Open a terminal that stays the controller's."""
    return os.open(path, flags & ~(os.O_CREAT | os.O_TRUNC) | os.O_NOCTTY)


class _Installed:
    """The debugger of this process, which opens the terminal when it is first needed."""

    def __init__(self, request: Request, folder: str) -> None:
        self._request, self._marker = request, Path(folder, _MARKER)
        self._debugger: _Debugger | None = None
        self._seen: BaseException | None = None

    def breakpoint(self, *_: object, **__: object) -> None:
        """Stop in the caller's frame."""
        if not self._is_closed:
            one = self._said(f"rank {self._request.rank} is at a breakpoint()")
            one.set_trace(sys._getframe(1))

    def post_mortem(self, error: BaseException) -> None:
        """Stop where an exception was raised, once."""
        if self._is_closed or error is self._seen or error.__traceback__ is None:
            return
        self._seen = error
        one = self._said(f"rank {self._request.rank} raised {type(error).__name__}: {error}")
        one.reset()
        one.interaction(None, error.__traceback__)

    @property
    def _is_closed(self) -> bool:
        return Path(self._request.closed).exists()

    def _said(self, why: str) -> _Debugger:
        if self._debugger is None:
            self._debugger = _Debugger(self._request, self._marker)
        self._debugger.say(why)
        return self._debugger


_HERE: list[_Installed] = []
"""The debugger of this process, if it is the rank that is asked for."""


def install(rank: int, *, folder: str) -> None:
    """Let ``breakpoint()`` and exceptions open the debugger, if the environment asks for it in this rank.

    If it asks for it in another rank, ``breakpoint()`` does nothing here: there is no terminal to read from.
    """
    request = Request.of(os.environ.get(VARIABLE))
    if request is None:
        return
    if request.rank != rank:
        sys.breakpointhook = _pass_by
        return
    _HERE[:] = [_Installed(request, folder)]
    sys.breakpointhook = _HERE[0].breakpoint


def _pass_by(*_: object, **__: object) -> None:
    """Stop nowhere."""


def post_mortem(error: BaseException) -> None:
    """Open the debugger where `error` was raised, if this is the rank that is asked for."""
    for one in _HERE:
        one.post_mortem(error)
