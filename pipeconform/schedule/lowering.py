"""Insert sends and receives into a compute-only table.

Why the result is safe. Run the table once with nominal costs and write all computations of all ranks into one
line, in order of time; after the end of every computation whose result another rank needs, write its
send and, immediately after it, the receive on the other rank. Each rank's list is its part of this line. A
transfer thus has one place in one total order that both its ends follow, and so has every computation; the
ranks can always follow the line itself, so the result cannot deadlock under buffered sends, synchronous
sends, synchronous sends served in order per pair of ranks or per communicator, or even receives that block.

When receives are posted. *Early*: a computation stands in the line where it ends, so one that is still
running when a message is sent comes after the receive, which is therefore posted in time for the transfer
to run beside it. This is for runtimes that post receives. The nominal transfer therefore takes a moment: if it took
none, a message would be sent exactly when the computation before it ends on the other rank, and the receive would
come after that computation, too late for any real transfer. *Late*: a computation stands where it starts, so the
receive comes after it. This is for runtimes whose receives block.

Neighbouring stages on the same rank pass tensors locally: no rows are written for them.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from pipeconform.errors import BadTableError, UsageError
from pipeconform.schedule.actions import Kind
from pipeconform.schedule.costs import Costs
from pipeconform.schedule.dependencies import Index, Rows, locate, needs
from pipeconform.schedule.table import ALONE, Table
from pipeconform.schedule.timing import Timing, run

NOMINAL = Costs(latency=2.0**-20)
"""F = I = W = 1, B = 2, and transfers that take a moment (a power of two: sums stay exact)."""


def lower(table: Table, *, receives: Literal["early", "late"] = "early", costs: Costs = NOMINAL) -> Table:
    """The table with communication; ``receives`` and ``costs`` affect where receives stand, but not safety.

    Raises:
        BadTableError: The table has communication already, or its computations wait for one another.
        UsageError: A cost is zero (the times of dependent computations must differ).
    """
    if table.has_communication:
        raise BadTableError("the table has sends or receives already; lower a compute-only table")
    if min(np.min(c) for c in (costs.forward, costs.input_grad, costs.weight_grad)) <= 0:
        raise UsageError("lowering needs costs above zero")
    index = locate(table)
    timing = run(index, needs(index), costs)
    if not timing.finished:
        held = [f"rank {rank} at {table.action_at(row)}" for rank, row in enumerate(timing.stuck) if row >= 0]
        raise BadTableError(f"the computations wait for one another: {', '.join(held[:4])}")
    return _merge(index, *_transfers(index), timing=timing, early=receives == "early")


def _transfers(index: Index) -> tuple[Rows, Rows]:
    """Rows whose result goes to another rank, and the stage it goes to."""
    table = index.table
    placement = np.asarray(table.placement, np.int64)
    position = table.stages % table.chain_length
    forward = (table.kinds == Kind.F) & (position < table.chain_length - 1)
    backward = ((table.kinds == Kind.B) | (table.kinds == Kind.I)) & (position > 0)
    rows = np.flatnonzero((forward | backward) & index.in_range)
    stages = table.stages[rows].astype(np.int64)
    targets = stages + np.where(table.kinds[rows] == Kind.F, 1, -1)
    remote = placement[targets] != placement[stages]
    return rows[remote], targets[remote]


def _merge(index: Index, rows: Rows, targets: Rows, *, timing: Timing, early: bool) -> Table:
    table = index.table
    is_forward = table.kinds[rows] == Kind.F
    alone = np.full(rows.shape, ALONE, np.uint8)
    ranks = np.concatenate((index.ranks, index.ranks[rows], np.asarray(table.placement, np.int32)[targets]))
    # The order of the line: by time, at equal times by _turn, then by the computation's row.
    times = np.concatenate((timing.end if early else timing.start, timing.end[rows], timing.end[rows]))
    sent = np.ones(2 * rows.size, np.int8)
    turns = np.concatenate((_turn(table, early=early), sent))
    places = np.concatenate((np.arange(table.num_entries), rows, rows))
    kinds = np.concatenate(
        (
            table.kinds,
            np.where(is_forward, Kind.SEND_F, Kind.SEND_B).astype(np.uint8),
            np.where(is_forward, Kind.RECV_F, Kind.RECV_B).astype(np.uint8),
        )
    )
    order = np.lexsort((places, turns, times, ranks))
    lengths = np.bincount(ranks, minlength=table.num_ranks)
    return Table(
        num_ranks=table.num_ranks,
        num_microbatches=table.num_microbatches,
        placement=table.placement,
        num_chains=table.num_chains,
        offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        kinds=kinds[order],
        groups=np.concatenate((table.groups, alone, alone))[order],
        stages=np.concatenate((table.stages, table.stages[rows], targets.astype(np.int32)))[order],
        microbatches=np.concatenate((table.microbatches, table.microbatches[rows], table.microbatches[rows]))[
            order
        ],
    )


def _turn(table: Table, *, early: bool) -> npt.NDArray[np.int8]:
    """The position of every row among those at the same time; transfers have 1.

    With early receives, rows that end at that time come first (0) and rows that take no time last (2); with late ones,
    all other rows start at that time and come after the transfers (2).
    """
    takes_time = table.kinds < Kind.SEND_F
    return np.where(takes_time & early, 0, 2).astype(np.int8)
