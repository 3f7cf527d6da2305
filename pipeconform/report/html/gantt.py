"""A Gantt chart of a plot: a lane per rank, the waits between computations, and the point of failure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from markupsafe import Markup

from pipeconform import svg
from pipeconform.report.html.figure import figure
from pipeconform.report.html.timeline import Plot
from pipeconform.schedule import Kind
from pipeconform.schedule.drawing import Cell

__all__ = ["MEANING", "Marks", "draw_gantt", "waits"]

_UNIT = 34.0  # pixels of the shortest computation, wide enough for its label
_LANE, _GAP = 34, 10
_TOP, _BOTTOM, _LEFT, _RIGHT = 8, 22, 86, 44
_ROOM = 20  # pixels above a lane with a pointer, for its text
_AXIS_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_MOST_TICKS = 16

MEANING: Mapping[Kind, str] = {
    Kind.F: "forward",
    Kind.B: "full backward",
    Kind.I: "input gradient",
    Kind.W: "weight gradient",
}

_BACKWARD = (Kind.B, Kind.I)


@dataclass(frozen=True, kw_only=True)
class Marks:
    """What a chart points at."""

    lane: int | None = None
    """The pipeline rank at fault, if known."""
    wrong: tuple[int, int] | None = None
    """Pipeline rank and index of the first wrong computation; the lane's length if one is missing at its end."""
    wrong_words: str = "first wrong"
    suspects: Collection[tuple[int, int]] = field(default_factory=frozenset)
    """Pipeline rank and index of the computations that the violation is about."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A stretch in which a rank computes nothing."""

    start: float
    end: float
    source: str
    """What it waits for: ``1B0 of rank 1``; empty if not known."""


def draw_gantt(plot: Plot, *, labels: Sequence[str], marks: Marks, title: str) -> Markup:
    """The chart as SVG; `labels` names each lane."""
    unit = _UNIT / min((c.end - c.start for lane in plot.lanes for c in lane), default=1.0)
    width = _LEFT + plot.makespan * unit + _RIGHT
    pointed = len(plot.lanes) if marks.wrong is None else marks.wrong[0]
    tops = [_TOP + rank * (_LANE + _GAP) + _ROOM * (rank >= pointed) for rank in range(len(plot.lanes))]
    height = tops[-1] + _LANE + _GAP + _BOTTOM
    shapes = [*_axis(plot, unit=unit, height=height)]
    for rank, lane in enumerate(plot.lanes):
        y = tops[rank]
        bad = rank == marks.lane
        label, cls = (f"✗ {labels[rank]}", "lane bad") if bad else (labels[rank], "lane")
        shapes.append(svg.text(label, _LEFT - 12, y + _LANE / 2 + 4, cls=cls, anchor="end"))
        shapes.append(svg.rect(_LEFT, y, plot.makespan * unit, _LANE, cls="track"))
        shapes.append(svg.group(_waits(plot, rank, labels, unit=unit), cls="cells wait", at=(_LEFT, y)))
        suspects = {at for of, at in marks.suspects if of == rank and (of, at) != marks.wrong}
        shapes += _cells(lane, unit=unit, y=y, suspects=suspects)
    if marks.wrong is not None:
        shapes.append(_pointer(plot.lanes[marks.wrong[0]], marks, unit=unit, y=tops[pointed]))
    return figure(shapes, width=width, height=height, title=title, cls="gantt")


def _axis(plot: Plot, *, unit: float, height: float) -> Iterator[str]:
    """Ticks in units of the shortest computation; none if the order could not be simulated."""
    if not plot.timed:
        return
    step = next((step for step in _AXIS_STEPS if plot.makespan / step <= _MOST_TICKS), _AXIS_STEPS[-1])
    places = [(tick, tick * unit) for tick in range(0, int(plot.makespan) + 1, step)]
    path = "".join(f"M{svg.number(x)} 0V{svg.number(height - _TOP - _BOTTOM + 4)}" for _, x in places)
    yield svg.group([f'<path d="{path}"/>'], cls="tick", at=(_LEFT, _TOP - 4))
    words = (f'<text x="{svg.number(x)}">{tick}</text>' for tick, x in places)
    yield svg.group(words, cls="axis", at=(_LEFT, height - 6))


def _waits(plot: Plot, rank: int, labels: Sequence[str], *, unit: float) -> Iterator[str]:
    for wait in waits(plot, rank, labels=labels):
        x, width = wait.start * unit, (wait.end - wait.start) * unit
        title = f"waits for {wait.source}" if wait.source else "waits"
        yield (f'<rect x="{svg.number(x)}" width="{svg.number(width)}"><title>{escape(title)}</title></rect>')


def _cells(lane: Sequence[Cell], *, unit: float, y: float, suspects: Collection[int]) -> Iterator[str]:
    """A lane's computations, grouped by kind, and their names.

    Groups are moved to the lane, and the style sheet sets the height of boxes, which keeps the markup short.
    """
    boxes: dict[tuple[Kind, int], list[str]] = {}
    names: dict[int, list[str]] = {}
    for at, cell in enumerate(lane):
        x, width = cell.start * unit, (cell.end - cell.start) * unit
        cls = ' class="suspect"' if at in suspects else ""
        box = f'<rect x="{svg.number(x + 1)}" width="{svg.number(max(width - 2, 0.5))}"{cls}/>'
        boxes.setdefault((cell.kind, cell.part), []).append(box)
        names.setdefault(cell.part, []).append(f'<text x="{svg.number(x + width / 2)}">{cell.label}</text>')
    half = _LANE / 2
    for (kind, part), several in boxes.items():
        cls = f"cells k{kind.name}{' half' if part else ''}"
        yield svg.group(several, cls=cls, at=(_LEFT, y + (half if part == 2 else 0)))
    for part, several in names.items():
        middle = half / 2 + half * (part == 2) if part else half
        yield svg.group(several, cls="names", at=(_LEFT, y + middle + 4))


def _pointer(lane: Sequence[Cell], marks: Marks, *, unit: float, y: float) -> str:
    """A frame around the first wrong computation, with its text; an empty frame if one is missing at the end."""
    assert marks.wrong is not None
    at = marks.wrong[1]
    if at < len(lane):
        x, width = _LEFT + lane[at].start * unit, (lane[at].end - lane[at].start) * unit
    else:
        x, width = _LEFT + (lane[-1].end if lane else 0.0) * unit, unit
    frame = svg.rect(x - 1.5, y - 3, width + 3, _LANE + 6, cls="wrong")
    return frame + svg.text(
        f"✗ {marks.wrong_words}", x + width / 2, y - 7, cls="pointer", anchor="start" if x < 140 else "middle"
    )


def waits(plot: Plot, rank: int, *, labels: Sequence[str]) -> Iterator[Wait]:
    """The waits of a rank before its last computation, and whose result it waits for."""
    if not plot.timed:
        return
    free = 0.0
    for cell in plot.lanes[rank]:
        if cell.start > free:
            yield Wait(start=free, end=cell.start, source=_source(plot, cell, labels=labels))
        free = max(free, cell.end)


def _source(plot: Plot, cell: Cell, *, labels: Sequence[str]) -> str:
    """The computation on another rank whose result this one takes."""
    kinds, stage = ((Kind.F,), cell.stage - 1) if cell.kind is Kind.F else (_BACKWARD, cell.stage + 1)
    for other, lane in enumerate(plot.lanes):
        for source in lane:
            if source.kind in kinds and (source.stage, source.microbatch) == (stage, cell.microbatch):
                return f"{source.label} of {labels[other]}"
    return ""
