"""The progress of a run: a live view on a terminal, elsewhere a line for each requirement, and for schedules."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from pipeconform.plural import plural
from pipeconform.report.console import bar, redrawn
from pipeconform.report.progress import Progress
from pipeconform.report.result import Cell, Status
from pipeconform.report.words import COLOURS, WORDS, counted, under
from pipeconform.spec.wrappers import all_requirements

__all__ = ["LiveView", "cell_line", "requirement_line", "schedule_line"]

_RATE_WINDOW = 10.0  # seconds over which the rate of judgements is averaged
_UPDATES = 8  # redraws per second
_GOOD = ("passed", "not_claimed", "skipped")


def _is_good(cell: Cell) -> bool:
    return cell.status in _GOOD or cell.is_expected


def cell_line(cell: Cell) -> Text:
    """A cell that is not met, on one line: ``FAIL  TRN-4 under GPipe: gradient value``."""
    line = Text.assemble((f"{WORDS[cell.status]:<5}", COLOURS[cell.status]), f"  {cell.requirement}")
    line.append(under(cell.schedule) + ("" if cell.variant == "default" else f" ({cell.variant})"))
    own = [violation for violation in cell.violations if not violation.blocked_by]
    what = "; ".join(dict.fromkeys(one.signature for one in own or cell.violations)) or cell.reason
    blockers = ", ".join(dict.fromkeys(one.blocked_by for one in cell.violations if one.blocked_by))
    first = what.strip().partition("\n")[0]
    line.append(f": {first}" if first else "")
    line.append(f" (by {blockers})" if cell.status == "blocked" and blockers else "")
    return line


def requirement_line(identifier: str, cells: list[Cell]) -> Text:
    """A requirement under all its schedules: its counts and, if they differ, under which it is not met."""
    wrong = [cell for cell in cells if not _is_good(cell)]
    judged_cells = [cell for cell in cells if cell.status not in ("not_claimed", "skipped")]
    is_mixed = len({cell.status for cell in judged_cells}) > 1 or 0 < len(wrong) < len(judged_cells)
    where: dict[Status, list[str]] = {}
    for cell in wrong if is_mixed else ():
        where.setdefault(cell.status, []).append(cell.schedule)
    line = Text(f"{identifier:<7}{counted((cell.status for cell in cells), where=where)}")
    return line.append(_effort(cells))


def schedule_line(cells: Sequence[Cell]) -> Text:
    """A schedule with all its requirements: its counts, and which are not met."""
    where: dict[Status, list[str]] = {}
    for cell in cells:
        if not _is_good(cell):
            where.setdefault(cell.status, []).append(cell.requirement)
    line = Text(f"all{under(cells[0].schedule)}: {counted((cell.status for cell in cells), where=where)}")
    return line.append(_effort(cells))


def _effort(cells: Sequence[Cell]) -> str:
    """How often these cells were judged, and how long it took; empty if they were not."""
    judged = sum(cell.judgements for cell in cells)
    return f"; {plural(judged, 'judgement')}, {sum(cell.seconds for cell in cells):.1f} s" if judged else ""


def _place(cell: Cell) -> tuple[str, str, str]:
    return cell.requirement, cell.schedule, cell.variant


def _finders(cells: Iterable[Cell]) -> str:
    """The requirements whose controls showed violations of these cells."""
    finders = (one.found_by.partition(":")[0] for cell in cells for one in cell.violations if one.found_by)
    return ", ".join(dict.fromkeys(finders))


class LiveView:
    """Shows the progress of a run; `cells` is the number of cells of each requirement.

    On a terminal a few lines are redrawn in place, and every cell that is not met scrolls by above them. Elsewhere
    a requirement gets one line when all its cells are judged. `workers` returns what the workers of a distributed run
    are doing, by name; they judge one schedule after the other, so `schedules`, the number of cells of each, lets
    these have a line, too, if there are several: those of requirements come at the very end.
    """

    def __init__(
        self,
        console: Console,
        *,
        cells: Mapping[str, int],
        implementation: str,
        profile: str,
        workers: Callable[[], Mapping[str, Progress]] = dict,
        schedules: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._console, self._awaited = console, Counter(cells)
        self._left = Counter(schedules if len(schedules) > 1 else {})
        self._workers = workers
        self._total = sum(cells.values())
        self._heading = f"{implementation}, profile {profile}"
        self._cells: dict[str, list[Cell]] = {identifier: [] for identifier in cells}
        self._titles = {row.id: row.title for row in all_requirements()}
        self._now: Progress | None = None
        self._judged_before = 0
        self._rates: deque[tuple[float, int]] = deque()
        self._begun = time.monotonic()
        self._redraws = console.is_terminal
        self._live: Live | None = None

    def start(self) -> None:
        """Begin to show the run."""
        self._begun = time.monotonic()
        if self._redraws:
            self._live = redrawn(self._console, self.render, updates=_UPDATES)
        else:
            wanted = plural(len(self._cells), "requirement")
            self._line(Text(f"judging {self._heading}: {wanted} in {plural(self._total, 'cell')}"))

    def progress(self, progress: Progress) -> None:
        """Note what is being judged now."""
        self._now = progress
        self._rates.append((time.monotonic(), self._judged_before + progress.judged))

    def cell(self, cell: Cell) -> None:
        """Note a cell that has been judged."""
        self._judged_before += cell.judgements
        self._now = None
        finished = self._cells.setdefault(cell.requirement, [])
        finished.append(cell)
        if self._live is not None:
            if not _is_good(cell):
                self._line(cell_line(cell))
            return
        if len(finished) == self._awaited[cell.requirement]:
            self._line(requirement_line(cell.requirement, finished))
        self._left[cell.schedule] -= 1
        if self._left[cell.schedule] == 0:
            cells = (one for several in self._cells.values() for one in several)
            self._line(schedule_line([one for one in cells if one.schedule == cell.schedule]))

    def settle(self, cells: Iterable[Cell]) -> None:
        """Show again what is not as it was shown: cells to which controls of other requirements added a violation."""
        shown = {_place(cell): cell.status for several in self._cells.values() for cell in several}
        settled: dict[str, list[Cell]] = {}
        for cell in cells:
            settled.setdefault(cell.requirement, []).append(cell)
        for identifier, own in settled.items():
            changed = [cell for cell in own if shown.get(_place(cell), cell.status) != cell.status]
            if not changed:
                continue
            lines = map(cell_line, changed) if self._redraws else [requirement_line(identifier, own)]
            for line in lines:
                self._line(line.append(f", as controls of {_finders(changed)} show"))

    def stop(self) -> None:
        """Clear what is redrawn; stopping twice is harmless."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def render(self) -> RenderableType:
        """The lines that are redrawn."""
        at_work = self._workers()
        cells = [cell for several in self._cells.values() for cell in several]
        wrong = sum(not _is_good(cell) for cell in cells)
        elapsed = time.monotonic() - self._begun
        top = Text(f"{self._heading}: {len(cells)} of {plural(self._total, 'cell')}, ")
        top.append(f"{wrong} not met", style="bold red" if wrong else "")
        judged = self._judged() + sum(now.judged for now in at_work.values())
        top.append(f", {plural(judged, 'judgement')}{self._rate()}, {elapsed:.0f} s")
        return Group(Text(), top, bar(len(cells), self._total), *self._doing(at_work))

    def _doing(self, at_work: Mapping[str, Progress]) -> list[Text]:
        if at_work:
            return [self._told(now, f"{worker}  ") for worker, now in at_work.items()]
        return [Text("…", style="dim") if self._now is None else self._told(self._now, "")]

    def _told(self, now: Progress, who: str) -> Text:
        found = f", {plural(now.violations, 'violation')}" if now.violations else ""
        title = self._titles.get(now.requirement, "")
        line = f"{who}{now.requirement} {title}, {now.schedule}: {now.doing}, {now.judged} judged{found}"
        return Text(line, no_wrap=True, overflow="ellipsis")

    def _judged(self) -> int:
        return self._judged_before + (0 if self._now is None else self._now.judged)

    def _rate(self) -> str:
        """Judgements per second in the last seconds; empty until there are two measurements."""
        now = time.monotonic()
        while self._rates and now - self._rates[0][0] > _RATE_WINDOW:
            self._rates.popleft()
        if len(self._rates) < 2 or now - self._rates[0][0] < 1.0:
            return ""
        return f" ({(self._judged() - self._rates[0][1]) / (now - self._rates[0][0]):.1f}/s)"

    def _line(self, text: Text) -> None:
        try:
            self._console.print(text, soft_wrap=True, highlight=False)
            self._console.file.flush()
        except (SystemExit, BrokenPipeError):  # rich exits when the pipe is closed
            raise KeyboardInterrupt from None
