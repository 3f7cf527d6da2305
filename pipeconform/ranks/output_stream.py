"""Shows what ranks print while they print it: whole lines, each with its rank.

A rank's standard output and standard error are one file (`Crew.output`), which this reads as it grows. Ranks never wait
for it: however much they print and however slow the terminal is, they write to their files.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["OutputStream", "to_standard_error"]

_GULP = 1 << 20  # bytes of one rank that are read before the ranks are looked after again
_LONGEST = 1 << 16  # bytes without an end of line that are held back
_MOST = 64 << 20  # bytes of one rank that are shown at its end


def to_standard_error(text: str) -> None:
    """Write lines to standard error; on a terminal, in place of a line about progress."""
    with contextlib.suppress(OSError, ValueError):  # closed: nobody reads it any more
        sys.stderr.write(f"\r\x1b[K{text}" if sys.stderr.isatty() else text)
        sys.stderr.flush()


class OutputStream:
    """The output of the ranks of one pool; `write` gets whole lines."""

    def __init__(self, write: Callable[[str], None] = to_standard_error) -> None:
        self._write = write
        self._read: dict[int, int] = {}
        self._rest: dict[int, bytes] = {}

    def begin(self, rank: int, path: Path) -> None:
        """Forget what `rank` printed before its next task, which it is not given yet."""
        self._read[rank], self._rest[rank] = 0, b""
        with contextlib.suppress(OSError):
            os.truncate(path, 0)

    def show(self, rank: int, path: Path) -> None:
        """Write the lines that `rank` has completed."""
        self._take(rank, path, _GULP)

    def end(self, rank: int, path: Path) -> None:
        """Write everything that `rank` has printed until now, its last line included; of very much, the end.

        A rank that is still printing may be faster than this reads.
        """
        left = self._unread(rank, path)
        if left > _MOST:
            self._tell_lost(rank, left - _MOST)
            self._read[rank] = self._read.get(rank, 0) + left - _MOST
            left = _MOST
        while left > 0 and (found := self._take(rank, path, min(left, _GULP))):
            left -= found
        if rest := self._rest.pop(rank, b""):
            self._tell(rank, [rest])

    def lost(self, rank: int, path: Path) -> None:
        """The file of `rank` is about to be emptied; say how much of it was not shown."""
        if (left := self._unread(rank, path)) > 0:
            self._tell_lost(rank, left)
        self._read[rank] = 0

    def _unread(self, rank: int, path: Path) -> int:
        try:
            size = path.stat().st_size
        except OSError:  # a task may delete any file
            return 0
        if size < self._read.get(rank, 0):  # the task has emptied it
            self._read[rank] = 0
        return size - self._read.get(rank, 0)

    def _take(self, rank: int, path: Path, most: int) -> int:
        """Read at most so many bytes, and write the complete lines; return how many there were."""
        try:
            with path.open("rb") as file:
                begin = self._read.get(rank, 0)
                if os.fstat(file.fileno()).st_size < begin:  # the task has emptied it
                    begin = 0
                file.seek(begin)
                found = file.read(most)
        except OSError:  # a task may delete any file
            return 0
        self._read[rank] = begin + len(found)
        whole, end, rest = (self._rest.get(rank, b"") + found).rpartition(b"\n")
        if len(rest) > _LONGEST:
            whole, end, rest = (whole + end + rest), b"\n", b""
        self._rest[rank] = rest
        if end:
            self._tell(rank, whole.split(b"\n"))
        return len(found)

    def _taken(self, rank: int) -> list[bytes]:
        rest = self._rest.pop(rank, b"")
        return [rest] if rest else []

    def _tell_lost(self, rank: int, number: int) -> None:
        self._tell(rank, [*self._taken(rank), f"({number} bytes are not shown)".encode()])

    def _tell(self, rank: int, lines: list[bytes]) -> None:
        self._write("".join(f"[rank{rank}]: {_visible(line)}\n" for line in lines))


def _visible(line: bytes) -> str:
    """What a terminal would show of a line: a progress bar writes over itself."""
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
