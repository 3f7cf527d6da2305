"""What is shown while implementations that are wrong on purpose are tried, and the table in the end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeconform.report.live import redrawn
from pipeconform.report.words import plural

__all__ = ["CanaryLine", "CanaryView", "canary_table"]

_UPDATES = 4  # redraws per second
_BAR = 40  # columns


@dataclass(frozen=True, kw_only=True)
class CanaryLine:
    """What became of one fault, as it is shown."""

    fault: str
    requirement: str
    schedule: str
    expected: str
    """The status that it must be caught with."""
    detected: bool
    shown: tuple[str, ...]
    seconds: float


class CanaryView:
    """Shows which fault is being tried: in place on a terminal, elsewhere as a line after every tenth of all."""

    def __init__(self, console: Console, *, total: int) -> None:
        self._console, self._total = console, total
        self._done: list[CanaryLine] = []
        self._now = ""
        self._begun = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> CanaryView:
        self._begun = time.monotonic()
        if self._console.is_terminal:
            self._live = redrawn(self._console, self.render, updates=_UPDATES)
        else:
            self._print(f"trying {plural(self._total, 'fault')}")
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def begin(self, *, fault: str, requirement: str, summary: str) -> None:
        """A fault is being tried from now on."""
        self._now = f"{requirement} {fault}: {summary}"

    def tell(self, line: CanaryLine) -> None:
        """A fault has been tried."""
        self._done.append(line)
        if not line.detected:
            self._print(_missed(line))
        elif self._live is None and self._ends_tenth():
            self._print(f"{len(self._done)} of {self._total} tried, {self._caught()} detected")

    def render(self) -> Text:
        """The lines that are redrawn."""
        done = len(self._done)
        full = _BAR * done // max(self._total, 1)
        elapsed = time.monotonic() - self._begun
        return Text.assemble(
            f"\nfaults: {done} of {self._total} tried, {self._caught()} detected, {elapsed:.0f} s\n",
            ("━" * full, "green"),
            ("─" * (_BAR - full), "dim"),
            f"\n{self._now}",
            no_wrap=True,
            overflow="ellipsis",
        )

    def _caught(self) -> int:
        return sum(line.detected for line in self._done)

    def _ends_tenth(self) -> bool:
        """Whether another tenth of all has been tried."""
        done, total = len(self._done), self._total
        return done * 10 // total > (done - 1) * 10 // total

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)
        self._console.file.flush()


def _missed(line: CanaryLine) -> str:
    """A fault that was not detected, in one line: what it must show, and what it showed."""
    seen = "; ".join(line.shown) or "nothing"
    return (
        f"NOT DETECTED  {line.fault}, which breaks {line.requirement} under {line.schedule}: "
        f"expected {line.expected}, seen {seen}"
    )


def canary_table(lines: Iterable[CanaryLine]) -> Table:
    """Per chapter: how many faults were tried and detected, with which statuses, and how long it took."""
    chapters: dict[str, list[CanaryLine]] = {}
    for line in lines:
        chapters.setdefault(line.requirement.partition("-")[0], []).append(line)
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("chapter")
    for name in ("requirements", "faults", "detected", "failed", "error", "crashed", "hung", "seconds"):
        table.add_column(name, justify="right")
    for chapter, several in chapters.items():
        table.add_row(chapter, *_row(several))
    everything = [line for several in chapters.values() for line in several]
    table.add_row("all", *_row(everything))
    return table


def _row(lines: list[CanaryLine]) -> list[str]:
    caught = [line.expected for line in lines if line.detected]
    return [
        str(len({line.requirement for line in lines})),
        str(len(lines)),
        str(len(caught)),
        *(str(caught.count(status) or "–") for status in ("failed", "error", "crashed", "hung")),
        f"{sum(line.seconds for line in lines):.1f}",
    ]
