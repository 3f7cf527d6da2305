"""The progress of a distributed run's workers: each keeps a small file up to date, which the live view reads."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from pipeconform.report.progress import Progress
from pipeconform.writing import whole_file

__all__ = ["Bulletins"]

_EVERY = 0.2  # seconds between two updates of one worker
_SUFFIX = ".doing"


class Bulletins:
    """The files of all workers, in a folder that they share."""

    def __init__(self, folder: Path, *, every: float = _EVERY) -> None:
        self._folder, self._every, self._posted = folder, every, float("-inf")

    def post(self, worker: str, progress: Progress) -> None:
        """Record what a worker is doing, at most once in `every` seconds; a full disk affects only who watches."""
        now = time.monotonic()
        if now - self._posted < self._every:
            return
        self._posted = now
        with contextlib.suppress(OSError), whole_file(self._folder / f"{worker}{_SUFFIX}") as part:
            part.write_bytes(msgspec.json.encode(progress))

    def remove(self, worker: str) -> None:
        """Remove the file of a worker that has ended."""
        with contextlib.suppress(OSError):
            (self._folder / f"{worker}{_SUFFIX}").unlink(missing_ok=True)

    def read(self) -> dict[str, Progress]:
        """What each worker is doing, by its name."""
        found = {}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                found[path.stem] = msgspec.json.decode(path.read_bytes(), type=Progress)
        return found

    def since(self, worker: str) -> float:
        """Seconds since a worker's file was written, by this machine's clock; infinite without a file."""
        try:
            return max(0.0, time.time() - (self._folder / f"{worker}{_SUFFIX}").stat().st_mtime)
        except OSError:
            return float("inf")
