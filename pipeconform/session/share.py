"""The folder that the processes of a distributed run share, and the messages in it.

Before it collects tests, a worker reports whether it can judge at all. The controller passes an error on to the user,
and so need not import and start everything itself.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from pipeconform.campaign.told import Told, Weight
from pipeconform.ranks.leases import Lease, Leases
from pipeconform.report.location import RESULT_NAME
from pipeconform.writing import whole_file

__all__ = ["Refusal", "Share", "Started"]

_EARLIER = "earlier.json"
_ENDED = ".ended"
_SAID = ".said"
_COVERAGE = "coverage"
_PATIENCE = 30.0  # seconds for the end of a worker that another one replaces


class Started(msgspec.Struct, frozen=True, tag=True):
    """A worker can judge; nothing is judged yet."""

    told: Told
    weights: dict[str, Weight]
    """How expensive each group of cells is."""


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """A worker cannot judge, or cannot go on."""

    text: str
    is_usage: bool
    """Whether the user asked for something impossible; otherwise the harness failed."""
    lacks_ranks: bool = False
    """Whether its ranks cannot be started, so that another process in its place would wait for them, too."""


class Share:
    """The shared folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def made(cls, *, out: Path | None) -> Share:
        """Create the folder, with a copy of the previous run's result, which this run overwrites in `out`."""
        share = cls(Path(tempfile.mkdtemp(prefix="pipeconform-")))
        if out is not None:
            with suppress(OSError):  # there may be no previous run
                shutil.copy(out / RESULT_NAME, share.earlier)
        return share

    @property
    def earlier(self) -> Path:
        """The result file of the previous run, if there was one."""
        return self.folder / _EARLIER

    @property
    def coverage(self) -> Path:
        """The folder in which the ranks of all workers record what they execute."""
        folder = self.folder / _COVERAGE
        folder.mkdir(exist_ok=True)
        return folder

    def say(self, worker: str, said: Started | Refusal) -> None:
        """Report to the controller how a worker started."""
        with whole_file(self.folder / f"{worker}{_SAID}") as part:
            part.write_bytes(msgspec.json.encode(said))

    def said(self, worker: str) -> Started | Refusal | None:
        """A worker's report, if it has made one."""
        try:
            data = (self.folder / f"{worker}{_SAID}").read_bytes()
        except FileNotFoundError:
            return None
        return msgspec.json.decode(data, type=Started | Refusal)

    def end(self, worker: str) -> None:
        """Record that a worker has finished."""
        with suppress(OSError):
            (self.folder / f"{worker}{_ENDED}").touch()

    def part(self, *, workers: int) -> Lease:
        """The lease of a number below `workers` that no other worker has; one that replaces another gets its number.

        Raises:
            PoolError: there are more workers than numbers.
        """
        numbers = Leases("part", tuple(map(str, range(workers))), folder=self.folder)
        return numbers.take(1, patience=_PATIENCE)

    def num_ended(self) -> int:
        """How many workers have finished."""
        return len(list(self.folder.glob(f"*{_ENDED}")))

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
