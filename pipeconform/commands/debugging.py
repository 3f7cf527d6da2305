"""``replay --pdb``: the terminal on which one rank is debugged."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeconform.errors import UsageError
from pipeconform.ranks.debugger import Request

__all__ = ["debugger_of", "require_debuggable"]


def require_debuggable(*, attached: bool, executes: bool) -> None:
    """Refuse ``--pdb`` where no debugger can open.

    Raises:
        UsageError: there is no terminal, the ranks are on other hosts, or nothing is executed.
    """
    if not executes:
        raise UsageError("--script executes nothing, so there is nothing to debug with --pdb")
    if attached:
        raise UsageError(
            "--pdb debugs a rank of this machine on your terminal; with --attach ranks run on other hosts"
        )
    if not sys.stdin.isatty():
        raise UsageError("--pdb needs a terminal: standard input is none")


@contextmanager
def debugger_of(rank: int | None) -> Iterator[str]:
    """The value of `Options.debugger` that debugs a rank on this terminal; empty without a rank."""
    if rank is None:
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="pipeconform-pdb-") as folder:
        terminal = os.ttyname(sys.stdin.fileno())
        yield str(Request(rank=rank, terminal=terminal, closed=str(Path(folder, "closed"))))
