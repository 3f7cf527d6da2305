"""One smoke run of torch, as a gate runs it, beside as many busy processes as asked for."""

from __future__ import annotations

import contextlib
import datetime
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from pipeconform.errors import HarnessError
from pipeconform.report.causes import causes_of
from pipeconform.report.result import read_result

__all__ = ["Trial", "busy", "expectations", "trial"]

PLANTED = Path(__file__).with_name("planted.py")
_FILLED = (
    *("--reason", "as torch is", "--issue", "https://github.com/pytorch/pytorch/issues"),
    *("--owner", "torch", "--expires", "2999-12-31"),
)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate said of one run."""

    kind: Literal["base", "unchanged", "planted"]
    """``base``: a run that the expectations are made of."""
    name: str
    """Its number, or the planted mistake's."""
    busy: int
    """The processes that computed without pause beside it."""
    began: str
    """When, in UTC."""
    seconds: float
    code: int
    """The exit code: 0 if everything was as expected."""
    said: tuple[str, ...] = ()
    """What the gate says is not as expected, a line each."""
    load: float | None = None
    """The machine's mean load average meanwhile, the run's own processes included; None if it was not recorded."""


@contextlib.contextmanager
def busy(number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes that compute, until the end."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def expectations(results: list[Path], file: Path) -> None:
    """Write the expectations that let these results pass.

    Raises:
        HarnessError: the command that writes them failed.
    """
    file.unlink(missing_ok=True)
    done = _command("expect", "update", *map(str, results), "--write", "--file", str(file), *_FILLED)
    if done.returncode:
        raise HarnessError(f"'expect update' ended with {done.returncode}: {done.stdout[-1000:]}")


def trial(
    *, kind: Literal["base", "unchanged", "planted"], name: str, beside: int, out: Path, expected: Path
) -> Trial:
    """Run the suite once on torch, or on torch with a planted mistake."""
    implementation = f"{PLANTED}:{name}" if kind == "planted" else "torch"
    gate = () if kind == "base" else ("--expectations", str(expected))
    folder = out / f"{kind}-{name}"
    began, start = datetime.datetime.now(datetime.UTC), time.monotonic()
    with busy(beside), _loads() as loads:
        done = _command(
            *("run", "--impl", implementation, "--profile", "smoke", "--out", str(folder)), *gate
        )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "printed.txt").write_text(done.stdout)
    return Trial(
        kind=kind,
        name=name,
        busy=beside,
        began=began.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - start, 1),
        code=done.returncode,
        said=() if kind == "base" else _unexpected(folder / "result.json"),
        load=round(statistics.fmean(loads), 1),
    )


@contextlib.contextmanager
def _loads(every: float = 10.0) -> Iterator[list[float]]:
    """The load averages of one minute, looked up all the time."""
    found, ended = [os.getloadavg()[0]], threading.Event()

    def look() -> None:
        while not ended.wait(every):
            found.append(os.getloadavg()[0])

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield found
    finally:
        ended.set()
        looking.join()


def _unexpected(file: Path) -> tuple[str, ...]:
    """The causes that nothing excuses, as `run` counts them, and what is wrong with the expectations."""
    if not file.exists():
        return ("no result was written",)
    result = read_result(file)
    causes = [
        f"{', '.join(one.requirements)}{one.under()}: {one.violation.message.splitlines()[0]}"
        for one in causes_of(result)
        if not one.expected
    ]
    problems = () if result.expectations is None else result.expectations.problems
    return tuple(" ".join(line.split())[:300] for line in (*causes, *problems))


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipeconform", *arguments],
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"NO_COLOR": "1"},
    )
