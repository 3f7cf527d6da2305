"""Sends and receives are matched by group, ranks and tag, in order."""

from __future__ import annotations

from msgspec import structs

from pipeconform.judge.traffic.cargo import Carried
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


def test_a_receive_from_any_rank_takes_the_first_send_to_its_rank_with_its_tag() -> None:
    found = exchange(of_ranks("r*#7 r*", "s2 s0 s0#7", "s0#7 r0"))

    assert set(found.messages) == {Message((1, 2), (0, 0)), Message((1, 1), (0, 1))}
    assert set(found.unreceived) == {(1, 0), (2, 0)}
    assert found.unsent == ((2, 1),)


def test_groups_have_messages_and_collectives_of_their_own() -> None:
    found = of_ranks("s1 r1 r* c c", "s0 r0 s0 c c")
    other = {0: (0, 2, 3), 1: (0, 4)}
    traffic = {
        rank: structs.replace(
            one,
            operations=tuple(
                structs.replace(operation, group="other") if operation.number in other[rank] else operation
                for operation in one.operations
            ),
            groups={**one.groups, "other": (0, 1, 2)},
        )
        for rank, one in found.items()
    }
    made = exchange(traffic)

    # rank 0's send is in another group than rank 1's receive; what rank 1 sends first is in the other group
    assert set(made.messages) == {Message((1, 0), (0, 2)), Message((1, 2), (0, 1))}
    assert set(made.unreceived) == {(0, 0)}
    assert made.unsent == ((1, 1),)
    assert {(one.group, one.members, *sorted(one.operands.items())) for one in made.collectives} == {
        ("given", (0, 1), (0, (0, 4)), (1, (1, 3))),
        ("other", (0, 1, 2), (0, (0, 3)), (1, (1, 4))),
    }


def test_what_an_operation_carries_is_part_of_its_name_if_it_is_known() -> None:
    cargo = Carried(what="output", stage=0, microbatch=2)
    found = exchange(of_ranks("S1 S1", "R0 R0"), {(0, 0): cargo})

    assert (
        found.named((0, 0)) == "send of float32[1] to rank 1, operation 0 (output of stage 0, microbatch 2)"
    )
    assert found.named((1, 0)).endswith("operation 0 (output of stage 0, microbatch 2)")
    assert found.named((0, 1)) == "send of float32[1] to rank 1, operation 1"
