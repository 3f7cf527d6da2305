"""Runs one part and keeps what became of it, so that a later command goes on after it."""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.gpu.parts import FOLDER, Part

__all__ = ["Record", "record_in", "run_part"]

RECORD = "part.json"
OUTPUT = "output.txt"
_GRACE = 30.0  # seconds in which a command that was interrupted writes what it has
_ROOT = Path(__file__).resolve().parents[2]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a part."""

    name: str
    title: str
    state: Literal["done", "failed", "cut off", "missing"]
    """``cut off``: it was not finished within its time."""
    commands: tuple[tuple[str, ...], ...] = ()
    code: int | None = None
    """The last command's exit code."""
    seconds: float = 0.0
    began: str = ""
    """When, in UTC."""
    why: str = ""
    """Why it is missing."""


def record_in(folder: Path, part: Part) -> Record | None:
    """What is kept of this part, if its commands are the same."""
    try:
        found = msgspec.json.decode((folder / part.name / RECORD).read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.commands == part.commands else None


def run_part(part: Part, *, results: Path, limit: float) -> Record:
    """Run the part's commands in at most `limit` seconds, and keep output and record in its folder of `results`."""
    folder = results / part.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if part.missing:
        return _kept(
            folder,
            Record(
                name=part.name, title=part.title, state="missing", commands=part.commands, why=part.missing
            ),
        )
    moment, begun = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), time.monotonic()
    state: Literal["done", "failed", "cut off"] = "done"
    code: int | None = None
    with (folder / OUTPUT).open("wb") as output:
        for command in part.commands:
            left = limit - (time.monotonic() - begun)
            code, ended = _command(command, part.variables, folder=folder, output=output.fileno(), limit=left)
            if not ended:
                state = "cut off"
            elif code not in part.codes:
                state = "failed"
            if state != "done":
                break
    return _kept(
        folder,
        Record(
            name=part.name,
            title=part.title,
            state=state,
            commands=part.commands,
            code=code,
            seconds=round(time.monotonic() - begun, 1),
            began=moment,
        ),
    )


def _command(
    command: tuple[str, ...], variables: Mapping[str, str], *, folder: Path, output: int, limit: float
) -> tuple[int | None, bool]:
    """The exit code, and whether the command ended by itself."""
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    with subprocess.Popen(
        [sys.executable, *(one.replace(FOLDER, str(folder)) for one in command)],
        env={**os.environ, "PYTHONUNBUFFERED": "1", **variables, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # an interruption reaches it through this process only
    ) as process:
        try:
            return process.wait(timeout=max(limit, 1.0)), True
        except subprocess.TimeoutExpired:
            return _interrupted(process), False
        except BaseException:
            _interrupted(process)
            raise


def _interrupted(process: subprocess.Popen[bytes]) -> int | None:
    """Interrupt a command, as Ctrl-C does: `pipeconform run` then writes what it has judged."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(timeout=_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def _kept(folder: Path, record: Record) -> Record:
    part = folder / f"{RECORD}.part"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    part.replace(folder / RECORD)
    return record
