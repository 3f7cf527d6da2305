"""Simulating a table: makespan, bubbles, memory, critical path. Linear in the number of rows.

Sends are buffered and receives are posted. A transfer starts when it has been sent and its receive has been posted, and
takes the latency and the volume of the costs; concurrent transfers do not slow each other down. A table without
communication pays the same for every dependency between ranks. Dependencies within a rank are free.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipeconform.errors import BadTableError
from pipeconform.schedule.actions import COMPUTE, Kind
from pipeconform.schedule.costs import UNIT, Costs
from pipeconform.schedule.deadlock import explain_stuck
from pipeconform.schedule.dependencies import Needs, locate, needs
from pipeconform.schedule.memory import in_flight_after
from pipeconform.schedule.table import OVERLAP_FIRST, OVERLAP_NEXT, Table, ranks_of_rows, rows_of
from pipeconform.schedule.timing import Times, run


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated table; times are in the unit of the costs, arrays have one entry per rank or per row."""

    table: Table
    costs: Costs
    start: Times = field(repr=False)
    """Per row."""
    end: Times = field(repr=False)
    """Per row."""
    needed: Needs = field(repr=False)

    @functools.cached_property
    def makespan(self) -> float:
        """End of the last row."""
        return float(self.end.max(initial=0.0))

    @functools.cached_property
    def busy(self) -> Times:
        """The time for which each rank computes."""
        table = self.table
        work = np.where(rows_of(table, COMPUTE), self.end - self.start, 0.0)
        work[table.groups == OVERLAP_NEXT] = 0.0  # a pair is counted once
        return np.bincount(ranks_of_rows(table), work, minlength=table.num_ranks).astype(np.float64)

    @functools.cached_property
    def span(self) -> Times:
        """From the start of each rank's first computation to the end of its last."""
        spans = np.zeros(self.table.num_ranks)
        compute = rows_of(self.table, COMPUTE)
        for rank in range(self.table.num_ranks):
            rows = slice(*self.table.offsets[rank : rank + 2])
            if compute[rows].any():
                spans[rank] = self.end[rows][compute[rows]].max() - self.start[rows][compute[rows]].min()
        return spans

    @property
    def span_bubble(self) -> Times:
        """Idle time of each rank between its own first and last computation."""
        return self.span - self.busy

    @property
    def makespan_bubble(self) -> Times:
        """Idle time of each rank in the whole step."""
        return self.makespan - self.busy

    @property
    def busy_fraction(self) -> float:
        """Work of all ranks over ranks × makespan; 1 for an empty table."""
        return float(self.busy.mean() / self.makespan) if self.makespan else 1.0

    @functools.cached_property
    def peak_in_flight_input(self) -> npt.NDArray[np.int64]:
        """Most (stage, microbatch) pairs each rank holds between F and I (or B)."""
        return _peaks(self.table, until=Kind.I)

    @functools.cached_property
    def peak_in_flight_weight(self) -> npt.NDArray[np.int64]:
        """Most (stage, microbatch) pairs each rank holds between F and W (or B)."""
        return _peaks(self.table, until=Kind.W)

    def critical_path(self) -> tuple[int, ...]:
        """Rows, first to last, each of which starts when its predecessor allows it; the last ends at the makespan.

        A row can start earlier only if its predecessor is faster. There may be several critical paths; this is one.
        """
        table = self.table
        if not table.num_entries:
            return ()
        row = int(np.argmax(self.end))
        first_of_rank = set(table.offsets[:-1].tolist())
        path = [row]
        while (before := self._held_by(row, first_of_rank)) >= 0:
            row = before
            path.append(row)
        return tuple(reversed(path))

    def _held_by(self, row: int, first_of_rank: set[int]) -> int:
        table = self.table
        group = table.groups[row]
        rows = [row]
        if group == OVERLAP_FIRST:
            rows.append(row + 1)
        elif group == OVERLAP_NEXT:
            rows.insert(0, row - 1)
        begin = self.start[row]
        in_rank = -1 if rows[0] in first_of_rank else rows[0] - 1
        if in_rank >= 0 and self.end[in_rank] == begin:
            return in_rank
        for waiting in rows:
            held = [int(self.needed.data[waiting]), int(self.needed.post[waiting])]
            held = [source for source in held if source >= 0]
            latest = max(held, key=lambda source: self.end[source], default=-1)
            if latest >= 0 and self.end[latest] + self.costs.delay(table) == begin:
                return latest
        return in_rank


def simulate(table: Table, *, costs: Costs = UNIT) -> Simulation:
    """Simulate a table, with or without communication.

    Raises:
        BadTableError: Its ranks wait for one another forever; the message is the proof.
        UsageError: A cost is given per stage for another number of stages.
    """
    index = locate(table)
    needed = needs(index)
    timing = run(index, needed, costs)
    if not timing.finished:
        # Unmatched transfers stop the simulation, but the deadlock rules ignore them.
        held = [
            f"rank {rank} stops at {table.action_at(row)}"
            for rank, row in enumerate(timing.stuck)
            if row >= 0
        ]
        raise BadTableError(f"the table cannot be run: {explain_stuck(index) or '; '.join(held[:4])}")
    return Simulation(table, costs, timing.start, timing.end, needed)


def _peaks(table: Table, *, until: Kind) -> npt.NDArray[np.int64]:
    held = in_flight_after(table, until=until)
    peaks = np.zeros(table.num_ranks, np.int64)
    filled = np.flatnonzero(np.diff(table.offsets))
    if filled.size:
        peaks[filled] = np.maximum.reduceat(held, table.offsets[filled])
    return np.maximum(peaks, 0)
