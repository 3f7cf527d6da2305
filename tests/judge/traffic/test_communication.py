"""Judgements of recorded traffic, and their messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.judge.registry import JUDGEMENTS
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
