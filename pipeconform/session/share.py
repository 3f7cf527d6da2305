"""The folder that the processes of a distributed run share, and what they tell each other there.

A worker says before it collects whether it can judge at all: what a run cannot do is found out where it would be done,
and the controller, which would otherwise have to import and start everything only to ask, says it to the user.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec

from pipeconform.campaign.told import Told, Weight
from pipeconform.report.location import RESULT_NAME

__all__ = ["Refusal", "Share", "Started"]

_EARLIER = "earlier.json"
_ENDED = ".ended"
_SAID = ".said"


class Started(msgspec.Struct, frozen=True, tag=True):
    """A worker can judge; nothing is judged yet."""

    told: Told
    weights: dict[str, Weight]
    """By group of cells."""


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """A worker cannot judge."""

    text: str
    is_usage: bool
    """Whether the user asked for what cannot be; otherwise something failed here."""


class Share:
    """The folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def made(cls, *, out: Path | None) -> Share:
        """Make the folder; the result of the run before is kept in it, since `out` gets that of this run."""
        share = cls(Path(tempfile.mkdtemp(prefix="pipeconform-")))
        if out is not None:
            with suppress(OSError):  # there is no run before this one
                shutil.copy(out / RESULT_NAME, share.earlier)
        return share

    @property
    def earlier(self) -> Path:
        """The result file of the run before, if there was one."""
        return self.folder / _EARLIER

    def say(self, worker: str, said: Started | Refusal) -> None:
        """Tell the controller how a worker has started."""
        part = self.folder / f".{worker}{_SAID}"
        part.write_bytes(msgspec.json.encode(said))
        part.replace(self.folder / f"{worker}{_SAID}")

    def said(self, worker: str) -> Started | Refusal | None:
        """What a worker has said, if it came so far."""
        try:
            data = (self.folder / f"{worker}{_SAID}").read_bytes()
        except FileNotFoundError:
            return None
        return msgspec.json.decode(data, type=Started | Refusal)

    def end(self, worker: str) -> None:
        """A worker has nothing to do any more."""
        with suppress(OSError):
            (self.folder / f"{worker}{_ENDED}").touch()

    def num_ended(self) -> int:
        """How many workers have nothing to do any more."""
        return len(list(self.folder.glob(f"*{_ENDED}")))

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
