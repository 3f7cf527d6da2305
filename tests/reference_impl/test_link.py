"""Messages of any length arrive, in frames whose lengths both ends know."""

from __future__ import annotations

import json

from pipeconform.ranks.pools import Pools


def test_messages_arrive_whole_whatever_their_lengths(pools: Pools) -> None:
    sizes = [[5, 5, 400, 5, 3, 3, 900, 0, 7], [900, 5], [3, 3]]

    vector = pools.of_size(2).run("link_ranks:exchange", json.dumps(sizes).encode(), time_limit=30)

    assert vector.ok, vector.describe()
    assert json.loads(vector.values[1]) == [list(range(size)) for several in sizes for size in several]


def test_both_ends_know_how_long_a_frame_is(pools: Pools) -> None:
    # compared here, because gloo takes a frame that is too short without a word
    sent, received = _frames(pools, [5, 5, 400, 3, 3])

    assert sent == received
    assert len(sent) == 7  # one frame more for the first message, one more for the long one
    assert sent[0] == 16
    assert sent[5] == sent[2]  # the first short message fills the frame of those before it
    assert sent[6] < sent[5]


def test_the_next_link_begins_with_what_the_last_one_began_with(pools: Pools) -> None:
    sent, received = _frames(pools, [5, 3], [5, 3], [400])

    assert sent == received
    first, second, third = sent[:3], sent[3:5], sent[5:]
    assert first[0] == 16
    assert second == [first[2], first[2]]  # one frame each; the second, shorter message is filled up
    assert third[0] == first[2]
    assert len(third) == 2


def test_short_messages_are_not_filled_up_to_the_long_ones_of_the_link_before(pools: Pools) -> None:
    sent, received = _frames(pools, [400], [5, 5])

    assert sent == received
    second = sent[2:]
    assert second[0] == 1024
    assert second[1] < 512


def _frames(pools: Pools, *sizes: list[int]) -> tuple[list[int], ...]:
    vector = pools.of_size(2).run("link_ranks:frames", json.dumps(sizes).encode(), time_limit=30)
    assert vector.ok, vector.describe()
    return tuple(map(json.loads, vector.values))
