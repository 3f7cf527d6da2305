"""Simulated tables as text for terminals; `pipeconform.schedule.svg` makes pictures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeconform.errors import UsageError
from pipeconform.schedule.actions import COMPUTE, Kind
from pipeconform.schedule.memory import in_flight_after
from pipeconform.schedule.simulator import Simulation
from pipeconform.schedule.table import OVERLAP_FIRST, OVERLAP_NEXT, rows_of

MAX_CELLS = 60_000
"""The most computations in one picture, since more would be unreadable and a very large file."""

_ANSI = {Kind.F: "44", Kind.B: "42", Kind.I: "43", Kind.W: "45"}
_LEVELS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Cell:
    """One computation in a picture."""

    rank: int
    kind: Kind
    stage: int
    microbatch: int
    start: float
    end: float
    part: int = 0
    """0 alone, 1 the forward of an overlapped pair, 2 its backward."""

    @property
    def label(self) -> str:
        """The computation as tables write it."""
        return f"{self.stage}{self.kind.name}{self.microbatch}"


def cells(simulation: Simulation) -> Iterator[Cell]:
    """All computations, rank by rank in order.

    Raises:
        UsageError: There are more than `MAX_CELLS`.
    """
    table = simulation.table
    rows = np.flatnonzero(rows_of(table, COMPUTE))
    if rows.size > MAX_CELLS:
        raise UsageError(f"{rows.size} computations do not fit a picture; draw at most {MAX_CELLS}")
    ranks = np.searchsorted(table.offsets, rows, side="right") - 1
    parts = {OVERLAP_FIRST: 1, OVERLAP_NEXT: 2}
    for row, rank in zip(rows.tolist(), ranks.tolist(), strict=True):
        yield Cell(
            rank,
            Kind(int(table.kinds[row])),
            int(table.stages[row]),
            int(table.microbatches[row]),
            float(simulation.start[row]),
            float(simulation.end[row]),
            parts.get(int(table.groups[row]), 0),
        )


def draw_text(simulation: Simulation, *, width: int | None = None, colour: bool = False) -> str:
    """One line per rank, time from left to right, with dots where a rank idles; below, what each rank holds.

    The height of a column in the lower lines is the largest number of (stage, microbatch) pairs that the rank holds up
    to W in that time; a full block is the most that any rank ever holds.

    Args:
        simulation: What to draw.
        width: Cut lines to this many characters; None draws everything.
        colour: Whether to colour cells for a terminal.

    Raises:
        UsageError: There are too many computations.
    """
    drawn = list(cells(simulation))
    num_ranks = simulation.table.num_ranks
    lines = draw_lines(drawn, num_ranks=num_ranks, width=width, colour=colour)
    lines += [line[:width] for line in _held_lines(simulation, _scale(drawn))]
    most = simulation.peak_in_flight_weight.tolist()
    idle, inside = (max(times, default=0.0) for times in (simulation.makespan_bubble, simulation.span_bubble))
    lines.append(
        f"makespan {simulation.makespan:g}, busy {simulation.busy_fraction:.1%}, longest idle time "
        f"{idle:g} (between a rank's own first and last action {inside:g}), most held {max(most, default=0)}"
    )
    return "\n".join(lines) + "\n"


def draw_lines(
    drawn: Sequence[Cell],
    *,
    num_ranks: int,
    width: int | None = None,
    colour: bool = False,
    mark: tuple[int, int] | None = None,
) -> list[str]:
    """The lines of `draw_text` for computations in rank order, without the sums.

    Args:
        drawn: The computations.
        num_ranks: The number of lines; a rank may have no computation.
        width: Cut lines to this many characters; None draws everything.
        colour: Whether to colour cells for a terminal.
        mark: Rank and index of the computation to point at, with carets in a line below it; an index after the
            rank's last computation points at the place after it. Lines are cut so that it remains visible.
    """
    scale = _scale(drawn)
    columns = round(max((c.end for c in drawn), default=0.0) * scale)
    by_rank = {rank: list(group) for rank, group in itertools.groupby(drawn, lambda cell: cell.rank)}
    pointer = _pointer(by_rank.get(mark[0], []), mark[1], scale) if mark is not None else None
    digits = len(str(num_ranks - 1))
    window = slice(None)
    if width is not None:
        room = max(1, width - len(f"rank {num_ranks - 1} "))
        begin = max(0, min(pointer[1] - room // 2, columns + 1 - room)) if pointer is not None else 0
        window = slice(begin, begin + room)
    lines = []
    for rank in range(num_ranks):
        line = [("·", "")] * columns
        for cell in by_rank.get(rank, ()):
            _write(line, cell, scale)
        lines.append(f"rank {rank:<{digits}} {_join(line[window], colour=colour)}")
        if mark is not None and pointer is not None and rank == mark[0]:
            carets = " " * pointer[0] + "^" * (pointer[1] - pointer[0])
            lines.append(f"     {'':<{digits}} {carets[window]}")
    return lines


def _scale(drawn: Sequence[Cell]) -> float:
    """Characters per time unit: the shortest cell fits the longest label."""
    longest = max((len(c.label) for c in drawn), default=1) + 1
    return longest / min((c.end - c.start for c in drawn if c.end > c.start), default=1.0)


def _held_lines(simulation: Simulation, scale: float) -> Iterator[str]:
    table, held = simulation.table, in_flight_after(simulation.table)
    columns = round(simulation.makespan * scale)
    top = max(1, int(simulation.peak_in_flight_weight.max(initial=1)))
    digits = len(str(table.num_ranks - 1))
    for rank in range(table.num_ranks):
        rows = np.arange(table.offsets[rank], table.offsets[rank + 1])
        rows = rows[np.isin(table.kinds[rows], [Kind.F, Kind.B, Kind.W])]
        levels = np.zeros(columns, np.int64)
        for row, until in itertools.zip_longest(rows.tolist(), rows[1:].tolist()):
            # Activations are held from the start of the forward to the end of the backward.
            begin, end = (_change(simulation, at, scale) for at in (row, until))
            levels[begin:end] = np.maximum(0, held[row])
        bars = "".join(_LEVELS[-(-level * len(_LEVELS) // top) - 1] if level else " " for level in levels)
        yield f"held {rank:<{digits}} {bars}".rstrip()


def _change(simulation: Simulation, row: int | None, scale: float) -> int | None:
    """The column at which a row changes the number of activations that its rank holds."""
    if row is None:
        return None
    is_forward = simulation.table.kinds[row] == Kind.F
    return round(float((simulation.start if is_forward else simulation.end)[row]) * scale)


def _pointer(mine: Sequence[Cell], index: int, scale: float) -> tuple[int, int]:
    """The columns to point at: those of a computation's label, or one after the last computation."""
    if index < len(mine):
        begin = round(mine[index].start * scale)
        return begin, begin + len(mine[index].label)
    end = round(mine[-1].end * scale) if mine else 0
    return end, end + 1


def _write(line: list[tuple[str, str]], cell: Cell, scale: float) -> None:
    begin, stop = round(cell.start * scale), round(cell.end * scale)
    if cell.part:
        middle = (begin + stop) // 2
        begin, stop = (begin, middle) if cell.part == 1 else (middle, stop)
    text = cell.label[: max(0, stop - begin)].ljust(stop - begin, "-" if cell.part == 0 else "=")
    if stop - begin > len(cell.label):
        text = text[:-1] + ("|" if cell.part != 1 else "&")
    line[begin:stop] = [(character, _ANSI[cell.kind]) for character in text]


def _join(line: list[tuple[str, str]], *, colour: bool) -> str:
    if not colour:
        return "".join(character for character, _ in line)
    out, current = [], ""
    for character, code in line:
        if code != current:
            out.append(f"\x1b[0;30;{code}m" if code else "\x1b[0m")
            current = code
        out.append(character)
    return "".join(out) + "\x1b[0m"
