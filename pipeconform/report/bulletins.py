"""What the workers of a distributed run are doing: each keeps a small file, and whoever shows the run reads them."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from pipeconform.report.progress import Progress

__all__ = ["Bulletins"]

_EVERY = 0.2  # seconds between two writings of one worker
_SUFFIX = ".doing"


class Bulletins:
    """The files of all workers, in a folder that they share."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._posted = folder, float("-inf")

    def post(self, worker: str, progress: Progress) -> None:
        """Say what a worker is doing, not more often than anybody looks; a full disk costs the view and no more."""
        now = time.monotonic()
        if now - self._posted < _EVERY:
            return
        self._posted = now
        part = self._folder / f".{worker}"
        with contextlib.suppress(OSError):
            part.write_bytes(msgspec.json.encode(progress))
            part.replace(self._folder / f"{worker}{_SUFFIX}")

    def remove(self, worker: str) -> None:
        """A worker does nothing any more."""
        with contextlib.suppress(OSError):
            (self._folder / f"{worker}{_SUFFIX}").unlink(missing_ok=True)

    def read(self) -> dict[str, Progress]:
        """By worker what it is doing."""
        found = {}
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                found[path.stem] = msgspec.json.decode(path.read_bytes(), type=Progress)
        return found
