"""What each row of a table waits for under each delivery, as programs of nodes for `progress.run_programs`.

Every row is a node and every rank a program. A computation waits for the transfer that brings its data, a synchronous
send for its own transfer; a send that a later row waits for leaves the waiting to that row. Without batches and without
order this is all: a receive is a row that waits for nothing, so it is posted once it is done. Otherwise the transfers'
ends are in `queues`, whose programs follow those of the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeconform.schedule.actions import SENDS
from pipeconform.schedule.dependencies import Index, Needs, Rows, awaited_sends, mates
from pipeconform.schedule.queues import Ends, Queues, queues
from pipeconform.schedule.table import ALONE, BATCH_FIRST, OVERLAP_FIRST, Table, rows_of
from pipeconform.schedule.violation import Delivery

UNORDERED = (Delivery.BUFFERED, Delivery.SYNCHRONOUS)


@dataclass(frozen=True)
class Waiting:
    """Programs and what each node waits for; the programs of ranks come first, with their rows as nodes."""

    offsets: Rows
    one: Rows
    two: Rows
    queues: Queues | None = None
    ends: Rows | None = None
    """The row of every end in a queue."""


def waiting(index: Index, needed: Needs, *, delivery: Delivery) -> Waiting:
    """The programs of a table; unmatched sends and receives wait for nothing."""
    if delivery in UNORDERED and not (index.table.groups == BATCH_FIRST).any():
        return without_queues(index, needed, delivery=delivery)
    return with_queues(index, needed, delivery=delivery)


def without_queues(index: Index, needed: Needs, *, delivery: Delivery) -> Waiting:
    """As `waiting`, for a table without batches and a delivery without order."""
    table, one = index.table, needed.data.copy()
    if delivery is not Delivery.BUFFERED:
        waits, sends = _held_up(index)
        one[waits] = mates(index)[sends]
    return Waiting(table.offsets, one, needed.post)


def with_queues(index: Index, needed: Needs, *, delivery: Delivery) -> Waiting:
    """As `waiting`, for any table and delivery."""
    table, mate = index.table, mates(index)
    rows = np.flatnonzero(mate >= 0)
    rows = rows[mate[mate[rows]] == rows]  # repeated transfers have no partner
    number = np.full(table.num_entries, -1, np.int64)
    number[rows] = np.arange(rows.size)
    opens = _opening_row(table)[rows]
    ends = Ends(
        queue=_queue(index, rows, mate[rows], opens, delivery),
        batch=opens,
        issue=np.where(np.isin(opens, table.offsets[:-1]), -1, opens - 1),
        mate=number[mate[rows]],
    )
    found = queues(ends, first_node=table.num_entries)
    due = np.full(table.num_entries + 1, -1, np.int64)  # the last entry is for row −1
    due[rows] = found.due
    one, two = due[needed.data], needed.post
    if delivery is not Delivery.BUFFERED:
        two = due[needed.post]
        waits, sends = _held_up(index)
        one[waits] = due[sends]
        two[waits] = np.where(due[sends] >= 0, due[mate[sends]], -1)
    halves = ((table.offsets, found.stops), (one, found.one), (two, found.two))
    offsets, one, two = map(np.concatenate, halves)
    return Waiting(offsets, one, two, found, rows)


def _held_up(index: Index) -> tuple[Rows, Rows]:
    """The rows that wait for a transfer to be served, and the send of each."""
    sent = awaited_sends(index)
    waits = np.flatnonzero(sent >= 0)
    by_themselves = rows_of(index.table, SENDS)
    by_themselves[sent[waits]] = False
    sends = np.flatnonzero(by_themselves)
    return np.concatenate((sends, waits)), np.concatenate((sends, sent[waits]))


def _queue(index: Index, rows: Rows, others: Rows, opens: Rows, delivery: Delivery) -> Rows:
    """The queue of every end."""
    mine, peer = index.ranks[rows].astype(np.int64), index.ranks[others].astype(np.int64)
    if delivery is Delivery.COMMUNICATOR:
        return mine
    return mine * index.table.num_ranks + peer if delivery is Delivery.ORDERED else opens


def _opening_row(table: Table) -> Rows:
    """For every row the first row of its batch, or itself."""
    opens = (table.groups == ALONE) | (table.groups == BATCH_FIRST) | (table.groups == OVERLAP_FIRST)
    found: Rows = np.maximum.accumulate(np.where(opens, np.arange(table.num_entries), 0))
    return found
