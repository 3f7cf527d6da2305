"""Of programs that do not finish, the shortest circle of waits is told, and of equal ones the first."""

import pytest

from pipeconform.schedule.circles import shortest_circle
from pipeconform.schedule.progress import run_programs


def _programs(*lengths, waits):
    """Offsets, and what each node waits for: `waits` maps a node to one node or two."""
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    one, two = [-1] * offsets[-1], [-1] * offsets[-1]
    for node, (first, *second) in waits.items():
        one[node], two[node] = first, *(second or [-1])
    return offsets, one, two


CIRCLES = {
    "programs that finish": ((2, 2), {1: [2], 3: [1]}, None),
    "a program without nodes": ((0, 1), {}, None),
    "two programs that wait for each other": ((1, 1), {0: [1], 1: [0]}, [(0, 1), (1, 0)]),
    "a program that waits for what it does later": ((2,), {0: [1]}, [(0, 1)]),
    "the second of what a node waits for": ((2, 1), {1: [0, 2], 2: [1]}, [(1, 2), (2, 1)]),
    "both, of which one is done": ((2, 1), {1: [2, 0], 2: [1]}, [(1, 2), (2, 1)]),
    "who waits for a circle is not in it": (
        (1, 1, 1),
        {0: [1], 1: [2], 2: [1]},
        [(1, 2), (2, 1)],
    ),
    "three in turn": ((1, 1, 1), {0: [1], 1: [2], 2: [0]}, [(0, 1), (1, 2), (2, 0)]),
    "a shorter circle of later programs": (
        (1, 1, 1, 1, 1),
        {0: [1], 1: [2], 2: [0], 3: [4], 4: [3]},
        [(3, 4), (4, 3)],
    ),
    "a circle of one after a longer one": ((1, 1, 2), {0: [1], 1: [0], 2: [3]}, [(2, 3)]),
    "the first of equal circles": (
        (1, 1, 1, 1),
        {0: [1], 1: [0], 2: [3], 3: [2]},
        [(0, 1), (1, 0)],
    ),
    "the shorter of two ways around": (
        (1, 1, 1),
        {0: [1, 2], 1: [2], 2: [0]},
        [(0, 2), (2, 0)],
    ),
    "a longer circle after a shorter one": (
        (1, 1, 1, 1, 1),
        {0: [1], 1: [0], 2: [3], 3: [4], 4: [2]},
        [(0, 1), (1, 0)],
    ),
    "where a program stands, not where it begins": (
        (3, 3),
        {1: [5], 4: [2]},
        [(1, 5), (4, 2)],
    ),
}


@pytest.mark.parametrize(("lengths", "waits", "circle"), CIRCLES.values(), ids=CIRCLES)
def test_the_shortest_circle_is_told_node_by_node(lengths, waits, circle):
    assert shortest_circle(*_programs(*lengths, waits=waits)) == circle


def test_programs_go_on_when_what_they_wait_for_is_done():
    """Program 0 waits twice for program 1, which waits once for program 0."""
    offsets, one, two = _programs(3, 3, waits={0: [3], 1: [4, 5], 4: [0]})

    position, done = run_programs(offsets, one, two)

    assert position == [3, 6]
    assert all(done)


def test_programs_stop_where_they_wait_forever():
    position, done = run_programs(*_programs(3, 2, 1, waits={1: [4], 4: [2]}))

    assert position == [1, 4, 6]
    assert list(done[:-1]) == [1, 0, 0, 1, 0, 1]


def test_several_programs_may_wait_for_one_node():
    position, _ = run_programs(*_programs(1, 1, 2, waits={0: [3], 1: [3]}))

    assert position == [1, 2, 4]
