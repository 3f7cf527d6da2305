"""Judgements of recorded traffic, and their messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from msgspec import structs

from pipeconform.adapter import Placement
from pipeconform.bounds.gauge import Gauge
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.registry import JUDGEMENTS
from pipeconform.judge.traffic.communication import needed_between
from pipeconform.observe.observation import Reference, Structure
from pipeconform.ranks.operations import Layout
from tests.facts import tells
from tests.judge.executions import evidence
from tests.judge.recorded import traffic

matched = JUDGEMENTS["COM-1"].judge
only_the_given_group = JUDGEMENTS["COM-2"].judge
gets_through = JUDGEMENTS["COM-3"].judge
memory_in_flight_is_left_alone = JUDGEMENTS["COM-4"].judge
no_more_than_needed = JUDGEMENTS["COM-5"].judge


def recorded(*texts: str, members: tuple[int, ...] | None = None, **changes: Any) -> Evidence:
    """One step of one microbatch on as many ranks as there are texts; `changes` are made to rank 0's record."""
    made = evidence(*[""] * len(texts), m=1)
    shown = tuple(
        structs.replace(one, traffic=traffic(text, ranks=len(texts), **(changes if one.rank == 0 else {})))
        for one, text in zip(made.shown, texts, strict=True)
    )
    if members is not None:
        world = structs.replace(made.case.world, pipeline_ranks=members)
        stages = made.case.model.stages[: len(members)]
        model = structs.replace(made.case.model, stages=stages)
        made = replace(made, case=structs.replace(made.case, world=world, model=model))
    return replace(made, shown=shown)


def told(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(one.kind, one.message) for one in findings]


def test_matched_traffic_is_left_alone() -> None:
    found = recorded("S1 R1 C", "R0 S0 C")

    assert told(matched(found)) == []
    assert told(gets_through(found)) == []
    assert told(no_more_than_needed(found)) == []


def test_what_is_left_over_is_named_with_both_ends() -> None:
    send, receive = matched(recorded("s1 r1#4", ""))

    assert (send.kind, send.rank) == ("send without receive", 0)
    assert tells(
        send.message, "rank 0's send", "float32[1]", "to rank 1", "operation 0", "received by rank 1"
    )
    assert (receive.kind, receive.rank) == ("receive without send", 0)
    assert tells(
        receive.message, "rank 0's receive", "float32[1]", "from rank 1", "with tag 4", "operation 1"
    )


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        (Layout("int32", (1,), (1,)), "dtypes differ"),
        (Layout("float32", (1, 1), (1, 1)), "shapes differ"),
        (Layout("float32", (1,), (3,)), None),
        (Layout("float32", (), ()), None),
    ],
)
def test_both_ends_of_a_message_look_alike(layout: Layout, kind: str | None) -> None:
    found = told(matched(recorded("S1", "R0", layout=layout)))

    assert [one for one, _ in found] == ([] if kind is None else [kind])


def test_members_issue_the_same_collectives() -> None:
    ((kind, message),) = told(matched(recorded("C C", "C")))

    assert kind == "collectives differ"
    assert tells(message, "rank 0", "allreduce of float32[1]", "operation 1", "rank 1", "nothing")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"groups": {"given": (0, 1, 2)}, "given": "another"}, "group of ranks [0, 1, 2]"),
        ({"groups": {"given": (0, 1, 2)}, "default": "given", "given": "another"}, "default group"),
    ],
)
def test_other_groups_than_the_given_one_are_named(changes: dict[str, Any], what: str) -> None:
    found = recorded("S1", "R0", "", members=(0, 1), **changes)
    first = next(only_the_given_group(found))

    assert (first.kind, first.rank) == ("another group", 0)
    assert tells(first.message, "rank 0", what, "send", "to rank 1", "operation 0", "pipeline's", "[0, 1]")


@pytest.mark.parametrize("default", ["given", "world"])
def test_a_group_of_some_of_the_members_may_be_used(default: str) -> None:
    """The default group is right, too, if it has no other ranks: an engine without groups passes."""
    found = recorded("S1", "R0", groups={"given": (0, 1)}, default=default, given="another")
    kinds = {one.kind for one in only_the_given_group(found)}

    assert "another group" not in kinds


def test_a_circle_is_the_finding_s_message() -> None:
    ((kind, message),) = told(gets_through(recorded("s1 r1 w0 w1", "s0 r0 w0 w1")))

    assert kind == "circle in order"
    assert message.startswith(
        "in order per communicator no rank makes progress:\n  rank 0 serves its receive of"
    )


def test_a_circle_that_needs_no_order_is_told_as_one() -> None:
    ((kind, message),) = told(gets_through(recorded("S1 R1", "S0 R0")))

    assert kind == "circle"
    assert message.startswith(
        "when sends wait for their receives no rank makes progress:\n  rank 0 waits for"
    )


def test_memory_in_flight_and_waits_that_are_missing_are_named() -> None:
    found = memory_in_flight_is_left_alone(recorded("S1 r1", "R0 S0", overwritten=(0,)))

    first, second = next(found), next(found)
    assert (first.rank, second.rank) == (0, 0)
    assert tells(first.message, "memory", "rank 0's send", "to rank 1", "operation 0", "changed")
    assert tells(second.message, "rank 0", "never waits", "receive", "from rank 1", "operation 1")


def test_nobody_sends_himself_anything() -> None:
    (found,) = no_more_than_needed(recorded("S0 R0", ""))

    assert (found.kind, found.rank) == ("sent to itself", 0)
    assert tells(found.message, "rank 0", "itself", "send of float32[1]", "to rank 0", "operation 0")


@pytest.mark.parametrize(
    ("texts", "number"),
    [(("S0 S1 R1", "R0 S0"), 0), (("S1 R1 S0", "R0 S0"), 2)],
    ids=["at first", "at last"],
)
def test_every_message_to_himself_is_named(texts: tuple[str, ...], number: int) -> None:
    (found,) = told(no_more_than_needed(recorded(*texts)))

    assert found[1].endswith(f"operation {number}")


def test_every_message_counts_the_first_and_the_last() -> None:
    once = recorded("S1", "R0")
    for name in ("s1 " * 257, "s1#1 " + "s1 " * 256, "s1 " * 256 + "s1#1"):
        for number, num_bytes in ((257, 1028), (258, 1032)):
            text = name.strip() + " S1" * (number - 257)
            shown = structs.replace(once.shown[0], traffic=traffic(text, ranks=2))
            found = told(no_more_than_needed(replace(once, shown=(shown, once.shown[1]))))

            assert [f"{num_bytes} bytes" in message for _, message in found] == [True] * (number - 257)


def test_bytes_are_counted_per_step_and_direction() -> None:
    once = recorded("S1", "R0")
    assert told(no_more_than_needed(once)) == []

    shown = structs.replace(once.shown[0], traffic=traffic("S1 " * 258, ranks=2))
    ((kind, message),) = told(no_more_than_needed(replace(once, shown=(shown, once.shown[1]))))
    assert kind == "more bytes than needed"
    assert tells(message, "rank 0", "rank 1", "1032 bytes", "4 bytes", "1 tensor", "1028", "1024 for each")


def test_a_rank_that_is_no_neighbour_is_called_so() -> None:
    once = recorded("S1", "R0 S2", "R1")
    assert told(no_more_than_needed(once)) == []

    shown = structs.replace(once.shown[0], traffic=traffic("S1 " + "S2 " * 257, ranks=3))
    ((kind, message),) = told(no_more_than_needed(replace(once, shown=(shown, *once.shown[1:]))))
    assert kind == "more bytes than needed"
    assert tells(message, "rank 0", "rank 2", "1028 bytes", "no neighbour")


def with_operations(made: Evidence, rank: int, change: dict[int, dict[str, object]]) -> Evidence:
    """Some operations of one rank changed, by number."""
    recorded = made.shown[rank].traffic
    assert recorded is not None
    operations = tuple(structs.replace(one, **change.get(one.number, {})) for one in recorded.operations)
    shown = list(made.shown)
    shown[rank] = structs.replace(shown[rank], traffic=structs.replace(recorded, operations=operations))
    return replace(made, shown=tuple(shown))


def operations_of(findings: Iterable[Finding]) -> list[tuple[str, int | None, str]]:
    """The kind, the rank and the number of the operation of each finding."""
    return [(one.kind, one.rank, one.message.partition("operation ")[2][:1]) for one in findings]


def test_everything_that_is_left_over_is_named_on_every_rank() -> None:
    assert operations_of(matched(recorded("s1 s1", "s0 r2", "r1 r1"))) == [
        ("send without receive", 0, "0"),
        ("send without receive", 0, "1"),
        ("send without receive", 1, "0"),
        ("receive without send", 1, "1"),
        ("receive without send", 2, "0"),
        ("receive without send", 2, "1"),
    ]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_message_looks_alike_at_both_ends(number: int) -> None:
    other = {number: {"tensors": (Layout("int32", (1,), (1,)),)}}
    found = list(matched(with_operations(recorded("S1 S1 S1", "R0 R0 R0"), 0, other)))

    assert operations_of(found) == [("dtypes differ", 1, str(number))]
    assert found[0].message == (
        f"rank 0's send of int32[1] to rank 1, operation {number} is taken by rank 1's receive of float32[1] from "
        f"rank 0, operation {number}"
    )


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("change", [{"name": "allgather_"}, {"peer": 1}], ids=["another one", "another root"])
def test_every_collective_is_the_same_on_all_members(number: int, change: dict[str, object]) -> None:
    found = list(matched(with_operations(recorded("C C C", "C C C"), 1, {number: change})))

    assert operations_of(found) == [("collectives differ", 0, str(number))]


def test_members_that_do_not_come_to_the_last_collective_are_named() -> None:
    (found,) = told(matched(recorded("C C", "C C", "C")))

    assert found[1] == (
        "members come with rank 0: allreduce of float32[1], operation 1; rank 1: allreduce of float32[1], operation "
        "1; rank 2: nothing"
    )


def test_messages_collectives_and_what_is_left_over_are_counted() -> None:
    for texts, number in (
        (("S1 R1 C", "R0 S0 C"), 3),
        (("s1", ""), 1),
        (("r1", ""), 1),
        (("", ""), 0),
    ):
        made = replace(recorded(*texts), gauge=Gauge())
        list(matched(made))

        assert made.gauge.compared == number


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_uses_the_given_group_and_every_other_group_is_named(rank: int) -> None:
    made = recorded("S1 S1", "R0 R0", "", members=(0, 1))
    recorded_there = made.shown[rank].traffic
    assert recorded_there is not None
    operations = tuple(
        structs.replace(one, group=group)
        for one, group in zip(recorded_there.operations, ("given", "all"), strict=True)
    )
    strange = structs.replace(
        recorded_there, operations=operations, groups={"given": (0, 1), "all": (0, 1, 2)}
    )
    shown = list(made.shown)
    shown[rank] = structs.replace(shown[rank], traffic=strange)
    found = [one for one in only_the_given_group(replace(made, shown=tuple(shown))) if "group" in one.kind]

    mine = [one for one in found if one.rank == rank]
    assert operations_of(mine) == [("another group", rank, "1")]
    assert "uses a group of ranks [0, 1, 2] for its" in mine[0].message


@pytest.mark.parametrize("rank", [0, 1])
def test_memory_of_every_rank_and_operation_is_left_alone_until_its_wait(rank: int) -> None:
    made = recorded("S1 R1 R1", "R0 S0 S0")
    there = made.shown[rank].traffic
    assert there is not None
    for numbers in ((0,), (0, 2), (1, 2)):
        shown = list(made.shown)
        shown[rank] = structs.replace(shown[rank], traffic=structs.replace(there, overwritten=numbers))
        found = memory_in_flight_is_left_alone(replace(made, shown=tuple(shown)))

        assert operations_of(one for one in found if one.kind == "changed in flight") == [
            ("changed in flight", rank, str(number)) for number in numbers
        ]


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        (("r1 r1 w0 w1", "S0 S0"), []),
        (("r1 r1 w1", "S0 S0"), [(0, "0")]),
        (("r1 r1 w0", "S0 S0"), [(0, "1")]),
        (("S1", "r0"), [(1, "0")]),
        (("s1", "R0"), []),
    ],
    ids=["none", "the first", "the last", "of the last rank", "a send"],
)
def test_every_receive_is_waited_for(texts: tuple[str, ...], left: list[tuple[int, str]]) -> None:
    found = operations_of(memory_in_flight_is_left_alone(recorded(*texts)))

    assert [(rank, number) for kind, rank, number in found if kind == "receive not waited for"] == left


def test_the_memory_of_every_operation_is_counted() -> None:
    made = replace(recorded("S1 R1", "R0 S0"), gauge=Gauge())
    list(memory_in_flight_is_left_alone(made))

    assert made.gauge.compared == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_sends_no_more_than_is_needed(rank: int) -> None:
    many = "S1 " * 258 if rank == 0 else "S0 " * 258
    made = recorded(*((many, "") if rank == 0 else ("", many)))
    (found,) = no_more_than_needed(made)

    assert (found.rank, found.step) == (rank, 0)


def test_a_neighbour_to_whom_nothing_goes_is_not_said_to_be_none() -> None:
    """In an evaluation nothing is due to come back; one description is allowed all the same."""
    shown = evidence("", "", m=1, trains=False)
    made = replace(
        shown,
        shown=tuple(
            structs.replace(one, traffic=traffic(text, ranks=2))
            for one, text in zip(shown.shown, ("", "S0 " * 257), strict=True)
        ),
    )

    assert [message for _, message in told(no_more_than_needed(made))] == [
        "rank 1 sends rank 0 1028 bytes; what crosses between their stages in this direction has 0 bytes in 0 "
        "tensors, which makes 1024 with 1024 for each of them"
    ]


# ---------------------------------------------------------------------------------------------- what is needed


def needed(made: Evidence) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """Bytes and tensors of the only step; every boundary has one float32, which is 4 bytes, per microbatch."""
    num_bytes, tensors = needed_between(made, made.expected.steps[0])
    return dict(num_bytes), dict(tensors)


def test_in_training_every_boundary_crosses_forwards_and_its_gradient_backwards() -> None:
    num_bytes, tensors = needed(evidence("", "", "", m=2))

    assert num_bytes == {(0, 1): 8, (1, 0): 8, (1, 2): 8, (2, 1): 8}
    assert tensors == {(0, 1): 2, (1, 0): 2, (1, 2): 2, (2, 1): 2}


def test_in_an_evaluation_nothing_comes_back() -> None:
    num_bytes, _ = needed(evidence("", "", "", m=2, trains=False))

    assert num_bytes == {(0, 1): 8, (1, 2): 8}


def test_integers_and_truth_values_have_no_gradient_and_complex_numbers_have_one() -> None:
    made = evidence("", "", m=1)
    for dtype, back in (
        (torch.int64, {}),
        (torch.bool, {}),
        (torch.bfloat16, {(1, 0): 2}),
        (torch.complex64, {(1, 0): 8}),
    ):
        value = (Structure.of(torch.ones(1, dtype=dtype)),)
        step = structs.replace(made.expected.steps[0], inputs=((value,), (value,)))
        num_bytes, _ = needed(replace(made, expected=Reference(steps=(step,))))

        assert num_bytes == {(0, 1): dtype.itemsize, **back}


def test_between_stages_of_one_rank_nothing_crosses_and_ranks_are_those_of_the_world() -> None:
    """Stages 0 to 3 on ranks 3, 5, 3, 5 of the world: three boundaries, each of which has a gradient."""
    made = evidence("", "", m=1, v=2)
    world = structs.replace(made.case.world, size=6, pipeline_ranks=(3, 5))
    num_bytes, _ = needed(replace(made, case=structs.replace(made.case, world=world)))
    assert num_bytes == {(3, 5): 12, (5, 3): 12}

    alone, _ = needed(evidence("", m=1, v=2))
    assert alone == {}


def test_where_both_ranks_own_every_stage_either_may_send_to_the_other() -> None:
    num_bytes, tensors = needed(evidence("", "", m=1, placement=Placement.MIRROR))

    assert num_bytes == {(0, 1): 8, (1, 0): 8}
    assert tensors == {(0, 1): 2, (1, 0): 2}
