"""When every row of a table starts and ends: one pass over the rows, each visited once.

Ranks run as far as they can; a rank that must wait is put aside until the row it waits for is done. The
order in which ranks are taken does not change the times (each is a maximum over what came before), so no
event queue is needed and the work is linear in the number of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeconform.schedule.actions import Kind
from pipeconform.schedule.costs import Costs
from pipeconform.schedule.dependencies import Index, Needs
from pipeconform.schedule.table import OVERLAP_FIRST

Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Timing:
    """Start and end of every row, in the costs' time unit."""

    start: Times
    end: Times
    stuck: tuple[int, ...]
    """The row each rank could not start, −1 for ranks that finished."""

    @property
    def finished(self) -> bool:
        """Whether every rank reached its end."""
        return max(self.stuck, default=-1) < 0


def run(index: Index, needed: Needs, costs: Costs) -> Timing:
    """Run a table with buffered sends and posted receives."""
    table = index.table
    duration = costs.durations(table)
    first = np.flatnonzero(table.groups == OVERLAP_FIRST)
    duration[first + 1] = (duration[first] + duration[first + 1]) * costs.pair_factor
    duration[first] = 0.0  # the second row of a pair waits for both and has the whole duration

    # Rows that neither take time nor wait happen when the row before them ends, so only the others are visited.
    walked = (duration > 0) | (table.kinds < Kind.SEND_F)  # only computations wait
    rows = np.flatnonzero(walked)
    offsets = np.concatenate(([0], np.cumsum(walked)))[table.offsets]
    before = np.cumsum(walked) - 1
    before[before < np.repeat(offsets[:-1], np.diff(table.offsets))] = -1  # none on its rank
    data, post = (np.where(of[rows] >= 0, before[of[rows]], -1) for of in (needed.data, needed.post))
    started, ended, position = _run(
        offsets.tolist(), duration[rows].tolist(), data.tolist(), post.tolist(), costs.delay(table)
    )
    end = np.append(ended, 0.0)[before]
    start = end - duration
    start[rows] = started
    start[first], end[first] = start[first + 1], end[first + 1]
    stuck = (
        -1 if walk == stop else int(rows[walk])
        for walk, stop in zip(position, offsets[1:].tolist(), strict=True)
    )
    return Timing(start, end, tuple(stuck))


def _run(
    offsets: list[int], duration: list[float], data: list[int], post: list[int], delay: float
) -> tuple[list[float], list[float], list[int]]:
    start = [math.nan] * (len(duration) + 1)
    end = [*start[:-1], -math.inf]  # the last is row −1, "nothing to wait for"
    done = bytearray(len(duration)) + b"\1"
    waiting: dict[int, list[int]] = {}
    position, clocks = offsets[:-1], [0.0] * (len(offsets) - 1)
    todo = list(range(len(clocks) - 1, -1, -1))
    while todo:
        rank = todo.pop()
        row, stop, clock = position[rank], offsets[rank + 1], clocks[rank]
        while row < stop:
            source, receive = data[row], post[row]
            if not (done[source] and done[receive]):
                waiting.setdefault(receive if done[source] else source, []).append(rank)
                break
            ready = end[source] + delay
            if end[receive] + delay > ready:  # noqa: PLR1730 - as below
                ready = end[receive] + delay
            if ready > clock:  # noqa: PLR1730 - max() would cost a tenth of the whole run
                clock = ready
            start[row] = clock
            clock += duration[row]
            end[row] = clock
            done[row] = 1
            if row in waiting:
                todo += waiting.pop(row)
            row += 1
        position[rank], clocks[rank] = row, clock
    del start[-1], end[-1]
    return start, end, position
