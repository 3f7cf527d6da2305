"""Running canaries, with their progress on the console and a table at the end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeconform.campaign.options import Options
from pipeconform.campaign.trial import Fault
from pipeconform.certificate.canaries import run_canaries
from pipeconform.certificate.contents import Canary
from pipeconform.plural import plural
from pipeconform.report.console import bar, redrawn

__all__ = ["CanaryView", "canary_table", "watched_canaries"]

_UPDATES = 4  # redraws per second


def watched_canaries(
    chosen: Sequence[Fault], *, options: Options, console: Console, shard: str = "", run_id: str = ""
) -> tuple[Canary, ...]:
    """Run the faults `chosen`; `console` shows the progress and, at once, each fault that is not detected.

    Raises:
        UsageError: there are too few devices.
        HarnessError: processes cannot be started.
    """
    with CanaryView(console, total=len(chosen)) as view:
        return run_canaries(
            chosen,
            options=options,
            shard=shard,
            run_id=run_id,
            begin=lambda fault: view.begin(
                fault=fault.name, requirement=fault.requirement, summary=fault.summary
            ),
            tell=view.tell,
        )


class CanaryView:
    """Shows which fault is being tried: on a terminal in place, elsewhere one line after every tenth of all."""

    def __init__(self, console: Console, *, total: int) -> None:
        self._console, self._total = console, total
        self._done: list[Canary] = []
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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if kind is not None:
            now = f", stopped in {self._now.partition(':')[0]}" if self._now else ""
            self._print(f"{self._tried()}{now}")

    def begin(self, *, fault: str, requirement: str, summary: str) -> None:
        """Show the fault that is tried now."""
        self._now = f"{requirement} {fault}: {summary}"

    def tell(self, line: Canary) -> None:
        """Count a fault that has been tried."""
        self._done.append(line)
        if not line.detected:
            self._print(_missed(line))
        elif self._live is None and self._ends_tenth():
            self._print(self._tried())

    def render(self) -> Text:
        """The lines that are redrawn."""
        done = len(self._done)
        elapsed = time.monotonic() - self._begun
        return Text.assemble(
            f"\nfaults: {self._tried()}, {elapsed:.0f} s\n",
            bar(done, self._total),
            f"\n{self._now}",
            no_wrap=True,
            overflow="ellipsis",
        )

    def _tried(self) -> str:
        """How many faults have been tried, and how many of them were detected."""
        caught = sum(line.detected for line in self._done)
        return f"{len(self._done)} of {self._total} tried, {caught} detected"

    def _ends_tenth(self) -> bool:
        """Whether another tenth of all has been tried."""
        done, total = len(self._done), self._total
        return done * 10 // total > (done - 1) * 10 // total

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)
        self._console.file.flush()


def _missed(line: Canary) -> str:
    """One line on a fault that was not detected: what was expected, and what it showed."""
    seen = "; ".join(line.shown) or "nothing"
    return (
        f"NOT DETECTED  {line.fault}, which breaks {line.requirement} under {line.schedule}: "
        f"expected {line.expected}, seen {seen}"
    )


def canary_table(lines: Iterable[Canary]) -> Table:
    """Per chapter: how many faults were tried and detected, with which statuses, and how long it took."""
    chapters: dict[str, list[Canary]] = {}
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


def _row(lines: list[Canary]) -> list[str]:
    caught = [line.expected for line in lines if line.detected]
    return [
        str(len({line.requirement for line in lines})),
        str(len(lines)),
        str(len(caught)),
        *(str(caught.count(status) or "–") for status in ("failed", "error", "crashed", "hung")),
        f"{sum(line.seconds for line in lines):.1f}",
    ]
