"""A simulated table as an SVG picture: which rank computes what and when, where it idles, and what it holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeconform import svg
from pipeconform.schedule.actions import Kind
from pipeconform.schedule.drawing import Cell, cells
from pipeconform.schedule.memory import in_flight_after
from pipeconform.schedule.placement import stages_of
from pipeconform.schedule.simulator import Simulation
from pipeconform.schedule.table import Table

COLOURS = {Kind.F: "#3b76c4", Kind.B: "#2f9467", Kind.I: "#e08e2b", Kind.W: "#8661c1"}
"""The colours of a rank's first stage; its later stages are paler."""

MIN_WIDTH, MAX_WIDTH = 1_400, 16_000
"""The limits, in pixels, of a picture's default width, which depends on its labels."""

_MEANING = {
    Kind.F: "F forward",
    Kind.B: "B backward",
    Kind.I: "I input gradient",
    Kind.W: "W weight gradient",
}
_INK, _MUTED, _RULE = "#22262b", "#6b7280", "#e3e6ea"
_LEFT, _RIGHT = 84, 116  # pixels for the ranks' names, and for the text about each rank
_TOP, _LANE, _GAP, _CURVE = 92, 28, 7, 34
_IDLE = (
    '<defs><pattern id="idle" width="7" height="7" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="7" height="7" fill="#f6f7f8"/>'
    '<path d="M0 0V7" stroke="#d9dde2" stroke-width="2.5"/></pattern></defs>'
)
_CHARACTER = 0.72  # width of a digit or capital, relative to its height, with some room


@dataclass(frozen=True)
class _Layout:
    """Positions in pixels."""

    num_ranks: int
    makespan: float
    scale: float
    """Pixels per time unit."""

    @classmethod
    def of(cls, simulation: Simulation, drawn: list[Cell], width: int | None) -> _Layout:
        makespan = simulation.makespan or 1.0
        if width is None:
            shortest = min((c.end - c.start for c in drawn if c.end > c.start), default=makespan)
            longest = max((len(c.label) for c in drawn), default=1)
            readable = _LEFT + _RIGHT + (6 + 6 * longest) * makespan / shortest
            width = min(MAX_WIDTH, max(MIN_WIDTH, math.ceil(readable)))
        room = max(width - _LEFT - _RIGHT, 1)
        return cls(simulation.table.num_ranks, makespan, room / makespan)

    def x(self, time: float) -> float:
        return _LEFT + time * self.scale

    def lane(self, rank: int) -> float:
        """Upper edge of a rank's lane."""
        return _TOP + rank * (_LANE + _GAP)

    def curve(self, rank: int) -> float:
        """Lower edge of a rank's curve."""
        return self.axis + 74 + rank * (_CURVE + _GAP) + _CURVE

    @property
    def axis(self) -> float:
        return self.lane(self.num_ranks)

    @property
    def end(self) -> float:
        return self.x(self.makespan)

    @property
    def size(self) -> tuple[int, int]:
        return math.ceil(self.end + _RIGHT), math.ceil(self.curve(self.num_ranks - 1) + 22)


def draw_svg(simulation: Simulation, *, title: str = "", width: int | None = None) -> str:
    """A Gantt chart: a lane per rank, hatched where the rank idles, and below it the activations that it holds.

    A cell shows stage, kind and microbatch as tables write them; a narrow one only the microbatch, and a very narrow
    one nothing. Every cell has a tooltip with its times.

    Args:
        simulation: What to draw.
        title: Text above the picture.
        width: In pixels; None makes the picture as wide as the labels of all cells need, up to `MAX_WIDTH`.

    Raises:
        UsageError: There are too many computations.
    """
    drawn = list(cells(simulation))
    layout = _Layout.of(simulation, drawn, width)
    laps = _laps(simulation.table)
    full_width, height = layout.size
    shapes = [
        _IDLE,
        svg.element("rect", width="100%", height="100%", fill="#ffffff"),
        *_head(simulation, title, laps),
        *_axis(layout),
        *_lanes(simulation, layout),
        *(_cell(cell, layout, lap=laps.get(cell.stage, 0)) for cell in drawn),
        *_curves(simulation, layout),
    ]
    return svg.picture(
        (f"\n{shape}" for shape in [*shapes, ""]),
        width=full_width,
        height=height,
        xmlns="http://www.w3.org/2000/svg",
        font_family="Helvetica, Arial, 'DejaVu Sans', sans-serif",
        font_size="12",
        fill=_INK,
    )


def _text(
    x: float, y: float, words: str, *, size: float = 12, colour: str = _INK, anchor: str = "start"
) -> str:
    return svg.text(words, x, y, anchor=anchor, font_size=size, fill=colour)


def _some(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _head(simulation: Simulation, title: str, laps: dict[int, int]) -> Iterator[str]:
    table = simulation.table
    yield svg.text(title, 18, 30, font_size=18, font_weight="bold")
    facts = (
        f"{_some(table.num_ranks, 'rank')}, {_some(table.num_stages, 'stage')}, "
        f"{_some(table.num_microbatches * table.num_chains, 'microbatch', 'microbatches')}; "
        f"makespan {simulation.makespan:g}, busy {simulation.busy_fraction:.1%}"
    )
    yield _text(18, 50, facts, colour=_MUTED)
    x = 18.0
    present = set(table.kinds.tolist())
    for kind in (kind for kind in _MEANING if kind in present):
        yield svg.rect(x, 62, 13, 13, rx=2.5, fill=COLOURS[kind])
        yield _text(x + 19, 73, _MEANING[kind])
        x += 36 + 6.2 * len(_MEANING[kind])
    yield svg.rect(x, 62, 13, 13, fill="url(#idle)", stroke="#cdd2d8")
    yield _text(x + 19, 73, "idle")
    if max(laps.values(), default=0):
        yield _text(x + 62, 73, "paler: later stages", colour=_MUTED)


def _axis(layout: _Layout) -> Iterator[str]:
    step = _tick(60 / layout.scale)
    bottom = layout.curve(layout.num_ranks - 1)
    for k in range(math.floor(layout.makespan / step + 1e-9) + 1):
        x = layout.x(k * step)
        yield svg.element("path", d=f"M{x:.1f} {_TOP - 4}V{bottom:.1f}", stroke=_RULE)
        yield _text(x, layout.axis + 12, f"{k * step:g}", size=11, colour=_MUTED, anchor="middle")
    yield _text(_LEFT - 14, layout.axis + 12, "time", size=11, colour=_MUTED, anchor="end")


def _tick(least: float) -> float:
    """The smallest of 1, 2, 5, 10, … (and their tenths) that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * k for k in (1, 2, 5, 10) if power * k >= least * (1 - 1e-9))


def _lanes(simulation: Simulation, layout: _Layout) -> Iterator[str]:
    makespan = simulation.makespan or 1.0
    yield _text(layout.end + 12, _TOP - 10, "idle", size=11, colour=_MUTED)
    for rank in range(layout.num_ranks):
        y, middle = layout.lane(rank), layout.lane(rank) + _LANE / 2 + 4
        yield _text(_LEFT - 14, middle, f"rank {rank}", anchor="end")
        yield svg.rect(_LEFT, y, layout.end - _LEFT, _LANE, rx=3, fill="url(#idle)")
        idle = float(simulation.makespan_bubble[rank])
        share = f"{idle:g}  ({idle / makespan:.1%})"
        yield _text(layout.end + 12, middle, share, size=11, colour=_MUTED)


def _laps(table: Table) -> dict[int, int]:
    """For each stage, its number among the stages of its rank, counted from 0."""
    return {
        stage: lap
        for rank in range(table.num_ranks)
        for lap, stage in enumerate(stages_of(table.placement, rank=rank))
    }


def _cell(cell: Cell, layout: _Layout, *, lap: int) -> str:
    x, y = layout.x(cell.start), layout.lane(cell.rank)
    width, height = (cell.end - cell.start) * layout.scale, float(_LANE)
    if cell.part:
        height /= 2
        y += height if cell.part == 2 else 0
    paleness = min(0.66, 0.36 * lap)
    shape = svg.rect(
        x + 0.4,
        y,
        width - 0.8,
        height - (0.5 if cell.part else 0),
        title=f"{cell.label}: {cell.start:g} to {cell.end:g}",
        rx=min(3, width / 6),
        fill=_mixed_with_white(COLOURS[cell.kind], paleness),
    )
    ink = "#ffffff" if paleness < 0.3 else _INK
    for words in (cell.label, str(cell.microbatch)):
        size = min(12.0, height - 3, (width - 3) / (_CHARACTER * len(words)))
        if size >= 6.5:
            baseline = y + height / 2 + size * 0.36
            return shape + _text(x + width / 2, baseline, words, size=size, colour=ink, anchor="middle")
    return shape


def _mixed_with_white(colour: str, share: float) -> str:
    channels = (int(colour[k : k + 2], 16) for k in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (255 - channel) * share):02x}" for channel in channels)


def _curves(simulation: Simulation, layout: _Layout) -> Iterator[str]:
    table = simulation.table
    split = bool((table.kinds == Kind.I).any())
    title_at = layout.axis + 46
    yield svg.text("Activations held", 18, title_at, font_size=13, font_weight="bold")
    freed = "to its W (filled) and to its I (line)" if split else "to its backward"
    words = f"(stage, microbatch) pairs, from the start of a forward {freed}"
    yield _text(148, title_at, words, colour=_MUTED)
    yield _text(layout.end + 12, title_at, "peak", size=11, colour=_MUTED)
    until_w, until_i = in_flight_after(table), in_flight_after(table, until=Kind.I)
    peaks = simulation.peak_in_flight_weight, simulation.peak_in_flight_input
    top = max(1, int(peaks[0].max(initial=1)))
    for rank in range(layout.num_ranks):
        y = layout.curve(rank)
        yield _text(_LEFT - 14, y - 4, f"rank {rank}", anchor="end")
        filled = _steps(simulation, layout, rank, until_w, (Kind.F, Kind.B, Kind.W), top)
        corners = svg.corners([(_LEFT, y), *filled, (layout.end, y)])
        yield svg.element("polygon", points=corners, fill="#cddcf0", stroke="#7fa5d6", stroke_width=1)
        if split:
            line = svg.corners(_steps(simulation, layout, rank, until_i, (Kind.F, Kind.B, Kind.I), top))
            yield svg.element("polyline", points=line, fill="none", stroke="#c2741a", stroke_width=1.3)
        yield svg.element("path", d=f"M{_LEFT} {y:.1f}H{layout.end:.1f}", stroke="#aab1ba")
        peak = f"{peaks[0][rank]}" + (f"  ({peaks[1][rank]} to I)" if split else "")
        yield _text(layout.end + 12, y - 4, peak, size=11, colour=_MUTED)


def _steps(
    simulation: Simulation,
    layout: _Layout,
    rank: int,
    held: npt.NDArray[np.int64],
    kinds: tuple[Kind, ...],
    top: int,
) -> list[tuple[float, float]]:
    """The corners of a rank's curve, left to right.

    Activations are held from the start of the forward to the end of the backward.
    """
    table = simulation.table
    rows = np.arange(table.offsets[rank], table.offsets[rank + 1])
    rows = rows[np.isin(table.kinds[rows], kinds)]
    y, level = layout.curve(rank), 0.0
    corners: list[tuple[float, float]] = [(float(_LEFT), y)]
    for row in rows.tolist():
        when = simulation.start[row] if table.kinds[row] == Kind.F else simulation.end[row]
        x, after = layout.x(float(when)), _CURVE * int(held[row]) / top
        if corners[-1][0] == x:
            corners[-1] = (x, y - after)  # what is freed and taken at once changes nothing
        else:
            corners += [(x, y - level), (x, y - after)]
        level = after
    return [*corners, (layout.end, y - level)]
