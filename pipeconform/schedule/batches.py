"""Who waits for whom when a table has batches.

All transfers of a batch are issued together, so whether one is posted no longer follows from the row before
it being done. Every matched transfer therefore gets a small program of its own. It is served when both its
ends are issued (with buffered sends: when its send is) and, in order per pair of ranks, when everything in
the batch before it between the two ranks has been served, on either end. A send waits for its own transfer,
a computation for the one that brings its data.
"""

from __future__ import annotations

import numpy as np

from pipeconform.schedule.actions import SENDS
from pipeconform.schedule.dependencies import Index, Needs, Rows, mates
from pipeconform.schedule.table import ALONE, BATCH_FIRST, OVERLAP_FIRST, Table, rows_of
from pipeconform.schedule.violation import Delivery
from pipeconform.schedule.waiting import Waiting


def has_batches(table: Table) -> bool:
    """Whether any transfers are issued as one."""
    return bool((table.groups == BATCH_FIRST).any())


def waiting_with_batches(index: Index, needed: Needs, *, delivery: Delivery) -> Waiting:
    """The programs of a table with batches; unmatched sends and receives wait for nothing."""
    table = index.table
    mate = mates(index)
    sends = np.flatnonzero(rows_of(table, SENDS) & (mate >= 0))
    sends = sends[mate[mate[sends]] == sends]  # a repeated send has no partner of its own
    number = {row: k for k, send in enumerate(sends.tolist()) for row in (send, int(mate[send]))}
    issue = _row_before_issue(table).tolist()
    before = _before_in_pair(index, mate, number) if delivery is Delivery.ORDERED else {}

    # Step 1: what each transfer waits for: rows, and the last nodes of other transfers.
    rows, transfers = [], []
    for send in sends.tolist():
        receive = int(mate[send])
        ends = (send,) if delivery is Delivery.BUFFERED else (send, receive)
        rows.append([issue[end] for end in ends])
        transfers.append(sorted({k for end in (send, receive) for k in before.get(end, ())}))
    # Step 2: two waits to a node; a transfer is served when the last node of its program is done.
    lengths = [(len(r) + len(t) + 1) // 2 for r, t in zip(rows, transfers, strict=True)]
    stops = table.num_entries + np.cumsum(lengths, dtype=np.int64)
    served = (stops - 1).tolist()
    one, two = needed.data.tolist(), needed.post.tolist()
    for own, others in zip(rows, transfers, strict=True):
        nodes = own + [served[k] for k in others]
        one += nodes[::2]
        two += nodes[1::2] + [-1] * (len(nodes) % 2)
    # Step 3: rows wait for transfers.
    for row in np.flatnonzero(needed.data >= 0).tolist():
        transfer = number.get(int(needed.data[row]), -1)
        one[row] = served[transfer] if transfer >= 0 else -1
    if delivery is not Delivery.BUFFERED:
        for send in sends.tolist():
            one[send] = served[number[send]]
    return Waiting(table.offsets.tolist() + stops.tolist(), one, two, tuple(sends.tolist()))


def _row_before_issue(table: Table) -> Rows:
    """For every row, the row that must be done for its batch (or itself) to be issued; −1 for none."""
    opens = (table.groups == ALONE) | (table.groups == BATCH_FIRST) | (table.groups == OVERLAP_FIRST)
    first = np.maximum.accumulate(np.where(opens, np.arange(table.num_entries), 0))
    return np.where(np.isin(first, table.offsets[:-1]), -1, first - 1)


def _before_in_pair(index: Index, mate: Rows, number: dict[int, int]) -> dict[int, list[int]]:
    """For every end of a transfer, the transfers in the batch before its own with the same other rank."""
    table = index.table
    opened = _row_before_issue(table).tolist()
    now: dict[tuple[int, int], tuple[int, list[int]]] = {}
    previous: dict[tuple[int, int], list[int]] = {}
    before: dict[int, list[int]] = {}
    for row in sorted(number):
        pair = (int(index.ranks[row]), int(index.ranks[mate[row]]))
        batch, members = now.get(pair, (-2, []))
        if batch != opened[row]:
            previous[pair] = members
            batch, members = opened[row], []
            now[pair] = (batch, members)
        members.append(number[row])
        before[row] = previous[pair]
    return before
