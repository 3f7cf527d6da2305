"""Transfers served in order, as programs for `progress.run_programs`.

A transfer has two *ends*, the send on one rank and the receive on the other. Ends wait in *queues*; those that are
issued together form a *batch*. An end is *due* once it has been issued and every batch before its own in its queue
has been served; a transfer is served once both its ends are due. Deliveries differ in which ends share a queue:

====================  ============================================================
every batch its own   no order at all
rank, other rank      in order per pair of ranks
rank, communicator    in order per communicator: whatever a rank issues on it
====================  ============================================================

This module does not know tables. A caller that has ends (of a table, or of recorded messages) adds their queues to its
own programs, and lets a node that waits for a transfer need `Queues.due` of both ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeconform.schedule.dependencies import Rows


@dataclass(frozen=True, kw_only=True)
class Ends:
    """One entry per end; the ends of a queue are in the order in which they were issued."""

    queue: Rows
    """A number that identifies the queue."""
    batch: Rows
    """A number that identifies the batch; neighbours in a queue with the same number were issued together."""
    issue: Rows
    """The node that must be done for the end to be issued, −1 for none; the same within a batch."""
    mate: Rows
    """The transfer's other end, −1 if there is none (then nothing waits for it)."""


@dataclass(frozen=True)
class Queues:
    """The programs of the queues, and the nodes that belong to the ends."""

    stops: Rows
    """Where each queue's nodes end; the first queue's begin at `first_node`, the others follow in turn."""
    one: Rows
    two: Rows
    """What each node of a queue waits for: the issue of a batch, and an end that is ahead of it."""
    due: Rows
    """For each end, the node that is done when the end is due."""
    first_node: int
    _ends: Rows
    _starts: Rows

    def at(self, node: int) -> tuple[int, int | None]:
        """For a node of a queue: an end of the batch it leads to, and the end ahead whose transfer is served first."""
        queue = int(np.searchsorted(self.stops, node, side="right"))
        begin = int(self.stops[queue - 1]) if queue else self.first_node
        at = int(self._starts[queue]) + node - begin
        if node == begin:
            return int(self._ends[at]), None
        ahead = int(self._ends[at - 1])
        following = at
        while self.due[self._ends[following]] < node:
            following += 1
        return int(self._ends[following]), ahead


def queues(ends: Ends, *, first_node: int) -> Queues:
    """The programs of all queues, with nodes from `first_node` on.

    A queue has one node that waits for the issue of its first batch, and then one for every end of that batch, which
    waits for the end's mate to be due; the last of these also waits for the issue of the next batch; and so on.
    """
    order = np.argsort(ends.queue, kind="stable")
    queue, batch = ends.queue[order], ends.batch[order]
    if not order.size:
        return Queues(order, order, order, order, first_node, order, order)
    opens_queue = np.concatenate(([True], queue[1:] != queue[:-1]))
    opens_batch = opens_queue | np.concatenate(([True], batch[1:] != batch[:-1]))
    position = np.arange(order.size)
    start = np.flatnonzero(opens_queue)
    number = np.cumsum(opens_queue) - 1  # of the queue, from 0
    batch_start = np.maximum.accumulate(np.where(opens_batch, position, 0))
    last_batch = batch_start[np.append(start[1:], order.size) - 1]

    lengths = last_batch - start + 1
    stops = first_node + np.cumsum(lengths)
    begin = stops - lengths
    due = np.empty(order.size, np.int64)
    due[order] = begin[number] + batch_start - start[number]
    one, two = np.full((2, int(lengths.sum())), -1, np.int64)
    one[due - first_node] = ends.issue
    ahead = position < last_batch[number]  # all but the last batch of their queue
    mate = ends.mate[order[ahead]]
    nodes = begin[number[ahead]] + 1 + position[ahead] - start[number[ahead]]
    two[nodes - first_node] = np.where(mate >= 0, due[mate], -1)
    return Queues(stops, one, two, due, first_node, order, start)
