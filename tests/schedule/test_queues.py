"""Queues say when the end of a transfer is due; who shares one decides what waits for what."""

import numpy as np

from pipeconform.schedule.progress import run_programs
from pipeconform.schedule.queues import Ends, queues

# Rank 0 issues a receive from rank 2, then a send to rank 1; rank 1 receives, then sends to rank 2, which does
# the same towards rank 0. Every end is issued from the beginning; ends are numbered rank by rank.
MATES = [5, 2, 1, 4, 3, 0]


def _due(queue, batch):
    """Which ends ever become due."""
    ends = Ends(
        queue=np.array(queue), batch=np.array(batch), issue=np.full(6, -1, np.int64), mate=np.array(MATES)
    )
    found = queues(ends, first_node=0)
    _, done = run_programs([0, *found.stops.tolist()], found.one.tolist(), found.two.tolist())
    return [bool(done[node]) for node in found.due.tolist()], found


def test_ends_of_queues_of_their_own_do_not_wait():
    assert _due(range(6), range(6))[0] == [True] * 6


def test_one_queue_per_rank_closes_the_circle():
    due, found = _due([0, 0, 1, 1, 2, 2], range(6))

    assert due == [True, False, True, False, True, False]
    assert [found.at(node) for node in found.due.tolist()] == [
        (0, None),
        (1, 0),
        (2, None),
        (3, 2),
        (4, None),
        (5, 4),
    ]


def test_one_batch_opens_it():
    assert _due([0, 0, 1, 1, 2, 2], [0, 0, 1, 2, 3, 4])[0] == [True] * 6


def test_an_end_is_not_due_before_it_is_issued():
    ends = Ends(queue=np.arange(2), batch=np.arange(2), issue=np.array([1, -1]), mate=np.array([1, 0]))
    found = queues(ends, first_node=2)

    # The rank of the first end is a program of two nodes, the second of which waits for the other end.
    offsets, one, two = [0, 2, *found.stops.tolist()], [-1, int(found.due[1])], [-1, -1]
    position, done = run_programs(offsets, one + found.one.tolist(), two + found.two.tolist())

    assert position == offsets[1:]
    assert found.one.tolist() == [1, -1]
    assert all(done)


def test_no_ends_have_no_queues():
    nothing = np.zeros(0, np.int64)

    assert (
        queues(Ends(queue=nothing, batch=nothing, issue=nothing, mate=nothing), first_node=3).stops.tolist()
        == []
    )
