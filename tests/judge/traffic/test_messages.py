"""Sends and receives are matched by group, ranks and tag, in order."""

from __future__ import annotations

from pipeconform.judge.traffic.messages import Message, exchange
from tests.judge.recorded import of_ranks


def test_messages_between_two_ranks_are_matched_in_order() -> None:
    found = exchange(of_ranks("S1 S1 R1", "R0 S0 R0"))

    assert set(found.messages) == {
        Message((0, 0), (1, 0)),
        Message((0, 1), (1, 2)),
        Message((1, 1), (0, 2)),
    }
    assert not found.unreceived
    assert not found.unsent


def test_tags_come_before_order() -> None:
    found = exchange(of_ranks("S1#1 S1#2", "R0#2 R0#1"))

    assert set(found.messages) == {Message((0, 0), (1, 1)), Message((0, 1), (1, 0))}


def test_what_has_no_other_end_is_left_over() -> None:
    found = exchange(of_ranks("s1 s1#1", "r0 r0 s0"))

    assert found.messages == (Message((0, 0), (1, 0)),)
    assert set(found.unreceived) == {(0, 1), (1, 2)}
    assert found.unsent == ((1, 1),)


def test_a_receive_from_any_rank_takes_what_no_other_receive_takes() -> None:
    found = exchange(of_ranks("r* r1", "S0", "S0"))

    assert set(found.messages) == {Message((1, 0), (0, 1)), Message((2, 0), (0, 0))}


def test_collectives_are_matched_by_their_number() -> None:
    found = exchange(of_ranks("C C", "C"))

    assert [sorted(one.operands) for one in found.collectives] == [[0, 1], [0]]
