"""What a run keeps about itself in its folder while it judges, so that it can be watched and resumed.

::

    OUT/.run/settings.json        what was asked for; a resumed run must ask for the same
    OUT/.run/begun.json           who judges since when, and the run's id
    OUT/.run/known.json           the implementation and the torch that the first judging process found
    OUT/.run/plan.json            the cells to judge, once they are collected
    OUT/.run/earlier.json         the result of the previous run, which this one overwrites
    OUT/.run/cells.NAME.jsonl     the cells that one process judged, a line each
    OUT/.run/NAME.doing           what a process is doing; its time is the process's last sign of life
    OUT/.run/ended.json           how the run ended; missing while it judges, and after SIGKILL

Lines are appended and synchronised as soon as a cell is judged: a process that ends at any moment loses only the cell
that it was judging. A line that was not written to its end is ignored.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pipeconform.case.any_case import case_of
from pipeconform.errors import BadResultError, UsageError
from pipeconform.ranks.process_tree import started_at
from pipeconform.report.location import RESULT_NAME
from pipeconform.report.result import Cell, Implementation
from pipeconform.writing import whole_file

__all__ = ["FOLDER", "Begun", "Ended", "Entry", "Journal", "Known", "Where"]

FOLDER = ".run"
T = TypeVar("T")
Where = tuple[str, str, str]
"""Requirement, schedule and environment variant of a cell."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A process that carries out the run; a resumed run has had others before."""

    id: str
    """The run's id in result files."""
    host: str
    pid: int
    started: int
    """When the process was started, as its host's kernel counts."""
    at: float
    """Seconds since 1970."""
    before: float = 0.0
    """Seconds that the run had taken when it was resumed."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What decides verdicts and is known only when the implementation has been asked."""

    implementation: Implementation
    schedules: tuple[str, ...]
    max_ranks: int
    torch: str
    device: str
    backend: str


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    complete: bool
    at: float


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A judged cell, and what judging it added to the counts of the run."""

    cell: Cell
    executed: dict[str, int]
    num_ranks: dict[str, int]
    points: tuple[tuple[str, ...], ...]
    elapsed: float
    """Seconds since the run began, without the time between its end and its resumption."""

    @property
    def where(self) -> Where:
        """The cell's place."""
        return self.cell.requirement, self.cell.schedule, self.cell.variant


@dataclass
class Journal:
    """The journal in one folder; each process has its own object and appends to a file of its own."""

    folder: Path

    @classmethod
    def of(cls, out: Path) -> Journal:
        """The journal of the run with this ``--out``, which need not exist."""
        return cls(out / FOLDER)

    # ------------------------------------------------------------------ the command's part

    def begin(self, settings: msgspec.Struct) -> None:
        """Start anew: forget the previous run but for its result.

        Raises:
            BadResultError: the folder cannot be written to; nothing is left in it.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # there may be no previous run
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder.parent / RESULT_NAME, self.earlier)
        try:
            self._write("settings.json", settings)
            self._write("begun.json", _begun(secrets.token_hex(16), before=0.0))
        except BadResultError:
            shutil.rmtree(self.folder, ignore_errors=True)  # half of a journal could not be resumed
            raise

    def resume(self) -> None:
        """Go on: another process carries out the run."""
        begun = self.begun()
        assert begun is not None, "there is a run to resume"
        self._remove("ended.json")
        for path in self.folder.glob("*.doing"):
            self._remove(path.name)
        seconds = max((one.elapsed for one in self.entries().values()), default=begun.before)
        self._write("begun.json", _begun(begun.id, before=seconds))

    def end(self, *, complete: bool) -> None:
        """Note that the run ended of its own accord, or was interrupted."""
        self._write_if_possible("ended.json", Ended(complete=complete, at=time.time()))

    def settings(self, kind: type[T]) -> T | None:
        """The settings of the run; None if there is none in this folder."""
        found: T | None = self._read("settings.json", kind)
        return found

    # ------------------------------------------------------------------ the judging processes' part

    def check(self, known: Known) -> None:
        """Note what the implementation is, or compare it with what it was when the run began.

        Raises:
            UsageError: it is another one, so that verdicts of both would not belong together.
        """
        before = self.known()
        if before is None:
            self._write_if_possible("known.json", known)
            return
        differences = _differences(before, known)
        if differences:
            raise UsageError(
                f"the run in {self.folder.parent} cannot be resumed, because something has changed since it began: "
                f"{'; '.join(differences)}; run without --resume to judge everything anew"
            )

    def plan(self, cells: Sequence[Where]) -> None:
        """Note the cells that the run judges, unless it was noted before."""
        if self.planned() is None:
            self._write_if_possible("plan.json", list(cells))

    def writer(self) -> Writer:
        """What appends this process's cells."""
        return Writer(self.folder / f"cells.{secrets.token_hex(8)}.jsonl")

    # ------------------------------------------------------------------ reading

    @property
    def earlier(self) -> Path:
        """The result file of the previous run, if there was one."""
        return self.folder / "earlier.json"

    def begun(self) -> Begun | None:
        """Who carries out the run."""
        found: Begun | None = self._read("begun.json", Begun)
        return found

    def known(self) -> Known | None:
        """What the first judging process found; None before."""
        found: Known | None = self._read("known.json", Known)
        return found

    def planned(self) -> tuple[Where, ...] | None:
        """The cells that the run judges; None if they were not collected yet."""
        found: tuple[Where, ...] | None = self._read("plan.json", tuple[Where, ...])
        return found

    def ended(self) -> Ended | None:
        """How the run ended; None while it judges, and if it could not say."""
        found: Ended | None = self._read("ended.json", Ended)
        return found

    def entries(self) -> dict[Where, Entry]:
        """Every cell that was judged."""
        return {
            one.where: one for path in sorted(self.folder.glob("cells.*.jsonl")) for one in _entries_of(path)
        }

    def last_sign(self) -> float:
        """When any file of the journal was written last, in seconds since 1970; 0 without any."""
        times = [0.0]
        for path in self.folder.glob("*"):
            with contextlib.suppress(OSError):  # a worker that ends removes its file
                times.append(path.stat().st_mtime)
        return max(times)

    def _read(self, name: str, kind: Any) -> Any:
        path = self.folder / name
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise BadResultError(f"cannot read {path}: {error}") from error

    def _write(self, name: str, value: object) -> None:
        path = self.folder / name
        try:
            with whole_file(path) as part:
                part.write_bytes(msgspec.json.encode(value))
        except OSError as error:
            raise BadResultError(f"cannot write {path}: {error.strerror or error}") from error

    def _write_if_possible(self, name: str, value: object) -> None:
        """Write a file without which a run can go on: a full disk must not end it."""
        with contextlib.suppress(BadResultError):
            self._write(name, value)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / name).unlink(missing_ok=True)


class Writer:
    """Appends the cells of one process; a full disk costs only resumption, not the run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, entry: Entry) -> None:
        """Append a cell, and wait until it is on the disk: the machine itself may be taken away."""
        with contextlib.suppress(OSError), self._path.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _entries_of(path: Path) -> Iterator[Entry]:
    try:
        data = path.read_bytes()
    except OSError:
        return
    for line in data.splitlines():
        with contextlib.suppress(
            msgspec.MsgspecError, UnicodeDecodeError
        ):  # a process was ended while it wrote
            yield msgspec.json.decode(line, type=Entry, dec_hook=case_of)


def _begun(name: str, *, before: float) -> Begun:
    pid = os.getpid()
    return Begun(
        id=name,
        host=socket.gethostname(),
        pid=pid,
        started=started_at(pid),
        at=time.time(),
        before=before,
    )


def _differences(before: Known, now: Known) -> list[str]:
    """What distinguishes two implementations or places, in words."""
    found = []
    for kind, one, other in (
        ("", before, now),
        ("the implementation's ", before.implementation, now.implementation),
    ):
        for name in one.__struct_fields__:
            first, second = getattr(one, name), getattr(other, name)
            if name == "implementation" or _as_written(first) == _as_written(second):
                continue
            brief = isinstance(first, str | int)
            words = f"{kind}{name.replace('_', ' ')}"
            found.append(f"{words} {second} instead of {first}" if brief else f"{words}")
    return found


def _as_written(value: object) -> bytes:
    """A value in a form in which one that was read from a file equals the one that was written."""
    return msgspec.json.encode(value, order="sorted")
