"""What every row of a table waits for, as row numbers in arrays.

The data of a stage cross ranks in one way only: an F needs its predecessor's F, a B or I its successor's
B or I. In a compute-only table the row to wait for is that computation itself; in a table with
communication it is the send that carries it, and the receive must have been posted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeconform.schedule.actions import WAITED_FOR, Kind
from pipeconform.schedule.table import OVERLAP_FIRST, Table, ranks_of_rows

Rows = npt.NDArray[np.int64]
NUM_INDEXED = 10
"""Kinds with a microbatch; their codes come first."""


@dataclass(frozen=True)
class Index:
    """The first row of every (kind, stage, microbatch), −1 where there is none."""

    table: Table
    first: Rows
    """Flat, kind-major, then stage, then microbatch."""
    ranks: npt.NDArray[np.int32]
    """The rank of every row."""
    in_range: npt.NDArray[np.bool_]
    """Rows that have a microbatch, and a stage and microbatch that the table declares."""

    def lookup(self, kind: Kind, stages: Rows, microbatches: Rows) -> Rows:
        """First row of each (kind, stage, microbatch) asked for; the numbers must be in range."""
        table = self.table
        size = table.num_stages * table.num_microbatches
        found: Rows = self.first[int(kind) * size + stages * table.num_microbatches + microbatches]
        return found

    def all_of(self, kind: Kind) -> Rows:
        """First rows of one kind, shape (stages, microbatches)."""
        table = self.table
        size = table.num_stages * table.num_microbatches
        return self.first[int(kind) * size : (int(kind) + 1) * size].reshape(table.num_stages, -1)


def locate(table: Table) -> Index:
    """Index a table; rows with a stage or microbatch out of range are left out."""
    size = table.num_stages * table.num_microbatches
    in_range = (
        (table.stages < table.num_stages)
        & (table.microbatches >= 0)
        & (table.microbatches < table.num_microbatches)
    )
    rows = np.flatnonzero(in_range)[::-1]  # backwards, so that the first occurrence is written last
    first = np.full(NUM_INDEXED * size, -1, np.int64)
    key = table.stages[rows].astype(np.int64) * table.num_microbatches + table.microbatches[rows]
    first[table.kinds[rows] * np.int64(size) + key] = rows
    return Index(table, first, ranks_of_rows(table), in_range)


@dataclass(frozen=True)
class Needs:
    """For every row the rows that must be done before it can start, −1 for none."""

    data: Rows
    """The row of *another rank* that provides the data of a computation: a computation or a send."""
    post: Rows
    """The receive (same rank) that a computation takes its data from."""


def needs(index: Index) -> Needs:
    """What each computation waits for beyond the order of its own rank; missing rows count as none."""
    table = index.table
    data = np.full(table.num_entries, -1, np.int64)
    post = np.full(table.num_entries, -1, np.int64)
    placement = np.asarray(table.placement, np.int64)
    position = np.arange(table.num_stages) % table.chain_length
    forward = ((Kind.F,), -1, position > 0, Kind.SEND_F, Kind.RECV_F)
    backward = ((Kind.B, Kind.I), 1, position < table.chain_length - 1, Kind.SEND_B, Kind.RECV_B)
    for kinds, step, has_neighbour, send, receive in (forward, backward):
        rows = np.flatnonzero(np.isin(table.kinds, [int(k) for k in kinds]) & index.in_range)
        rows = rows[has_neighbour[table.stages[rows]]]
        stages = table.stages[rows].astype(np.int64)
        microbatches = table.microbatches[rows].astype(np.int64)
        if table.has_communication:
            remote = placement[stages] != placement[stages + step]
            rows, stages, microbatches = rows[remote], stages[remote], microbatches[remote]
            data[rows] = index.lookup(send, stages + step, microbatches)
            post[rows] = index.lookup(receive, stages, microbatches)
            continue
        source = np.full(rows.shape, -1, np.int64)
        for kind in kinds:
            found = index.lookup(kind, stages + step, microbatches)
            source = np.where(source < 0, found, source)
        source += (source >= 0) & (table.groups[source] == OVERLAP_FIRST)  # a pair ends as one
        local = (source >= 0) & (index.ranks[source] == index.ranks[rows])
        data[rows] = np.where(local, -1, source)
    return Needs(data, post)


def mates(index: Index) -> Rows:
    """For every send its receive and for every receive its send, −1 for other rows and unmatched ones."""
    table = index.table
    mate = np.full(table.num_entries, -1, np.int64)
    position = np.arange(table.num_stages) % table.chain_length
    not_last, not_first = position < table.chain_length - 1, position > 0
    for kind, step, allowed, other in (
        (Kind.SEND_F, 1, not_last, Kind.RECV_F),
        (Kind.RECV_F, -1, not_first, Kind.SEND_F),
        (Kind.SEND_B, -1, not_first, Kind.RECV_B),
        (Kind.RECV_B, 1, not_last, Kind.SEND_B),
    ):
        rows = np.flatnonzero((table.kinds == kind) & index.in_range)
        rows = rows[allowed[table.stages[rows]]]
        stages = table.stages[rows].astype(np.int64)
        mate[rows] = index.lookup(other, stages + step, table.microbatches[rows].astype(np.int64))
    return mate


def awaited_sends(index: Index) -> Rows:
    """For every wait the send that it is for, −1 for other rows and where its rank has not sent that before."""
    table = index.table
    found = np.full(table.num_entries, -1, np.int64)
    for kind, send in WAITED_FOR.items():
        rows = np.flatnonzero((table.kinds == kind) & index.in_range)
        sent = index.lookup(
            send, table.stages[rows].astype(np.int64), table.microbatches[rows].astype(np.int64)
        )
        here = (sent >= 0) & (sent < rows) & (index.ranks[sent] == index.ranks[rows])
        found[rows[here]] = sent[here]
    return found
