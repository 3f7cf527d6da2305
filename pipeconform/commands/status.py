"""``pipeconform status``: how far a run is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from pipeconform.commands.say import say_json, say_line
from pipeconform.errors import UsageError
from pipeconform.plural import plural
from pipeconform.report.location import DEFAULT_OUT
from pipeconform.report.result import Cell
from pipeconform.report.text import headline
from pipeconform.report.words import counted, under
from pipeconform.session.journal import Journal
from pipeconform.session.standing import At, Standing, State, standing_of

__all__ = ["lines_of", "status"]

_MOST_WRONG = 10
_MOST_SLOW = 5
_NOT_MET = ("failed", "hung", "crashed", "error", "flaky")
_QUIET = 10.0  # seconds without a sign of a process that are worth a word


@click.command(short_help="Show how far a run is that judges, or was ended.")
@click.argument("out", metavar="[DIR]", type=click.Path(path_type=Path), default=DEFAULT_OUT)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def status(out: Path, as_json: bool) -> None:
    """Show what a run has judged so far, what each of its processes is doing, and where its time went.

    DIR is the folder of the run's results. Only files in it are read, so this works while the run judges, on every host
    that sees the folder, and after the run was ended.
    """
    found = standing_of(Journal.of(out))
    if found is None:
        raise UsageError(f"no run in {out}; 'pipeconform run --out DIR' keeps its state in DIR")
    if as_json:
        say_json(msgspec.json.encode(found).decode())
        return
    for line in lines_of(found, out=out):
        say_line(line)


def lines_of(found: Standing, *, out: Path) -> Iterator[str]:
    """The lines that describe a run in the folder `out`."""
    yield f"{found.implementation or 'a run'} in {out}: {_state(found)}"
    if found.planned is None:
        yield "the cells are not collected yet"
        return
    cells = found.cells
    said = f"{len(cells)} of {plural(found.planned, 'cell')} judged"
    yield f"{said}: {counted(cell.status for cell in cells)}" if cells else said
    yield from _wrong(cells)
    if found.at:
        yield "now:"
        yield from (f"  {_doing(one)}" for one in found.at)
    if found.waiting:
        waiting = sorted(found.waiting.items(), key=lambda item: -item[1])
        yield f"waiting: {', '.join(f'{number}{under(name)}' for name, number in waiting)}"
    yield from _time(cells)
    if found.state in ("ended", "interrupted", "silent"):
        yield f"go on: pipeconform run --resume {out}"


def _state(found: Standing) -> str:
    place = f"process {found.pid} on host {found.host}"
    words: dict[State, str] = {
        "running": f"running for {_duration(found.seconds)}, {place}",
        "complete": f"complete after {_duration(found.seconds)}",
        "interrupted": f"ended before it was complete, after {_duration(found.seconds)}",
        "ended": f"killed after {_duration(found.seconds)}: {place} is gone",
        "silent": f"no sign of {place} for {_duration(found.sign)}; it has probably ended",
    }
    return words[found.state]


def _wrong(cells: Sequence[Cell]) -> Iterator[str]:
    wrong = [cell for cell in cells if cell.status in _NOT_MET and not cell.is_expected]
    for cell in wrong[:_MOST_WRONG]:
        yield f"  {cell.requirement}{under(cell.schedule)}: {headline(cell)}"
    if len(wrong) > _MOST_WRONG:
        yield f"  and {plural(len(wrong) - _MOST_WRONG, 'other cell')}"


def _doing(one: At) -> str:
    found = f", {plural(one.violations, 'violation')}" if one.violations else ""
    quiet = f"; last sign {_duration(one.sign)} ago" if one.sign >= _QUIET else ""
    return (
        f"{one.process}  {one.requirement}{under(one.schedule)}: {one.doing}, "
        f"{plural(one.judgements, 'judgement')}{found}{quiet}"
    )


def _time(cells: Sequence[Cell]) -> Iterator[str]:
    """Where the time of judging went: by chapter, and the longest cells."""
    chapters: Counter[str] = Counter()
    for cell in cells:
        chapters[cell.requirement.partition("-")[0]] += cell.seconds  # type: ignore[assignment]  # seconds are counted
    total = sum(chapters.values())
    if not total:
        return
    shares = (f"{name} {_duration(spent)}" for name, spent in chapters.most_common() if spent >= total / 100)
    yield f"time: {_duration(total)} in cells: {', '.join(shares)}"
    slow = sorted(cells, key=lambda cell: -cell.seconds)[:_MOST_SLOW]
    longest = (f"{cell.requirement}{under(cell.schedule)} {_duration(cell.seconds)}" for cell in slow)
    yield f"longest: {', '.join(longest)}"


def _duration(seconds: float) -> str:
    """``4.2 s``, ``3:05 min``, ``2:03:04 h``."""
    if (tenths := round(seconds, 1)) < 60:
        return f"{tenths:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"
