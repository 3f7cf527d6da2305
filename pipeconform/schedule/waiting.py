"""Who waits for whom under each delivery, as programs of nodes for `progress.run_programs`.

Without batches every row is a node and a rank is a program:

* a computation waits for the row that provides its data and for its own receive;
* a synchronous send also waits for its receive to be posted;
* in order per pair, the two ranks must also agree on the order of their transfers (`pair_conflict`). If they
  do, nothing more has to be waited for: a receive is posted after the sends before it have finished.

Tables with batches need more: see ``batches``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeconform.schedule.actions import SENDS
from pipeconform.schedule.dependencies import Index, Needs, Rows, mates
from pipeconform.schedule.table import rows_of
from pipeconform.schedule.violation import Delivery, Rule, Violation


@dataclass(frozen=True)
class Waiting:
    """Programs and what each node waits for; first come the ranks and their rows."""

    offsets: list[int]
    one: list[int]
    two: list[int]
    sends: tuple[int, ...] = ()
    """For every program beyond the ranks, the send of the transfer it stands for (with batches only)."""


def waiting(index: Index, needed: Needs, *, delivery: Delivery) -> Waiting:
    """The programs of a table without batches; unmatched sends and receives wait for nothing."""
    table = index.table
    mate = mates(index)
    one = needed.data.copy()
    if delivery is not Delivery.BUFFERED:
        sends = np.flatnonzero(rows_of(table, SENDS))
        one[sends] = mate[sends]
    return Waiting(table.offsets.tolist(), one.tolist(), needed.post.tolist())


def pair_conflict(index: Index) -> Violation | None:
    """The first place where two ranks disagree about the order of their transfers (without batches)."""
    mate = mates(index)
    low, high = _pair_sequences(index, mate)
    wrong = np.flatnonzero(mate[low] != high)
    if not wrong.size:
        return None
    ours, theirs = int(low[wrong[0]]), int(high[wrong[0]])
    table, ranks = index.table, index.ranks
    a, b = int(ranks[ours]), int(ranks[theirs])
    return Violation(
        Rule.DEADLOCK,
        f"rank {a} comes to {table.action_at(ours)} when rank {b} comes to {table.action_at(theirs)}: both "
        f"are the next between ranks {a} and {b}, they do not belong together, and neither rank serves "
        f"another first ({table.action_at(ours)} belongs to {table.action_at(int(mate[ours]))}, which "
        f"rank {b} has later)",
        (ours, theirs),
        Delivery.ORDERED,
    )


def _pair_sequences(index: Index, mate: Rows) -> tuple[Rows, Rows]:
    """Matched transfers, pair by pair: in the lower rank's order and in the higher rank's order."""
    rows = np.flatnonzero(mate >= 0)
    rows = rows[mate[mate[rows]] == rows]  # repeated transfers have no partner of their own
    mine, peer = index.ranks[rows].astype(np.int64), index.ranks[mate[rows]].astype(np.int64)
    rows, mine, peer = rows[mine != peer], mine[mine != peer], peer[mine != peer]
    pair = np.minimum(mine, peer) * index.table.num_ranks + np.maximum(mine, peer)
    sides = []
    for side in (mine < peer, mine > peer):
        of_side = rows[side]
        sides.append(of_side[np.lexsort((of_side, pair[side]))])
    return sides[0], sides[1]
