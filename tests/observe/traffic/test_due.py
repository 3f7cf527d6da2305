"""What is due in an operation that blocks: said where one boundary is crossed between two ranks, and only there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from pipeconform.observe.traffic.due import Neighbours, due
from pipeconform.observe.traffic.records import Cargo
from pipeconform.ranks.operations import Layout, Operation
from tests.facts import tells

BOUNDARY = Layout("float64", (2, 3), (3, 1))


def neighbours(*owners: int, rank: int, **changes: Any) -> Neighbours:
    made: dict[str, Any] = {
        "rank": rank,
        "owners": [frozenset({owner}) for owner in owners],
        "dtype": "float64",
        "trains": lambda step: step == 0,
        "order": lambda step, stage, back: (10, 11, 12) if back else (0, 1, 2),
    }
    return Neighbours(**{**made, **changes})


def operation(kind: str, peer: int, *, number: int = 0, **changes: Any) -> Operation:
    made = Operation(number, kind, kind, "given", peer, peer, 0, (BOUNDARY,), 48, step=0)  # type: ignore[arg-type]
    return structs.replace(made, **changes)


def told(view: Neighbours, one: Operation, before: Sequence[Operation] = ()) -> tuple[str, int] | None:
    found = due(view, one, before, {})
    return None if found is None else (found.what, found.stage)


def test_between_neighbours_with_one_boundary_each_operation_has_one_use() -> None:
    view = neighbours(4, 5, 6, rank=5)

    assert told(view, operation("receive", 4)) == ("input", 1)
    assert told(view, operation("receive", 6)) == ("output gradient", 1)
    assert told(view, operation("send", 6)) == ("output", 1)
    assert told(view, operation("send", 4)) == ("input gradient", 1)


def test_where_two_uses_are_possible_or_none_is_nothing_is_said() -> None:
    loop = neighbours(0, 1, 0, 1, rank=1)
    assert told(loop, operation("receive", 0)) is None
    assert told(loop, operation("send", 0)) is None

    view = neighbours(0, 1, 2, rank=0)
    assert told(view, operation("receive", 2)) is None
    assert told(view, operation("receive", -1)) is None
    assert told(view, operation("receive", 1, step=-1)) is None
    assert told(view, operation("collective", 1)) is None
    assert told(view, operation("receive", 1, tensors=(Layout("int64", (3,), (1,)),))) is None
    assert told(view, operation("receive", 1, tensors=(BOUNDARY, BOUNDARY))) is None
    assert told(neighbours(0, 1, rank=0, dtype=""), operation("receive", 1)) is None


def test_a_step_without_a_backward_leaves_only_the_way_forward() -> None:
    assert told(neighbours(0, 1, 0, rank=1), operation("receive", 0, step=1)) == ("input", 1)
    assert told(neighbours(0, 1, rank=0), operation("receive", 1, step=1)) is None


def test_the_microbatch_is_the_schedule_s_and_earlier_ones_are_counted() -> None:
    view = neighbours(0, 1, rank=0)
    other = operation("receive", 1, tensors=(Layout("int64", (3,), (1,)),))
    earlier = [operation("receive", 1), other, operation("send", 1), operation("receive", 1, step=-1)]

    found = due(view, operation("receive", 1, number=4), earlier, {})
    assert found is not None
    assert (found.what, found.stage, found.microbatch) == ("output gradient", 0, 11)
    assert tells(
        found.words, "due from there", "gradient", "output of stage 0", "2nd of step 0", "microbatch 11"
    )


def test_beyond_the_schedule_no_microbatch_is_named() -> None:
    found = due(neighbours(0, 1, rank=0), operation("send", 1), [operation("send", 1)] * 10, {})

    assert found is not None
    assert (found.what, found.stage, found.microbatch) == ("output", 0, None)
    assert tells(found.words, "due to there", "output of stage 0", "11th of step 0")
    assert not any(word in found.words for word in ("gradient", "microbatch", "schedule"))


def test_what_was_recognised_goes_before_what_is_left_over() -> None:
    view = neighbours(0, 1, 0, 1, rank=0)
    earlier = [operation("send", 1, number=n) for n in range(3)]
    cargo = {0: Cargo("output", 0, 0), 1: Cargo("output", 2, 1), 3: Cargo("output", 2, 4)}

    found = due(view, operation("send", 1, number=3), earlier, cargo)
    assert found is not None
    assert (found.what, found.stage, found.microbatch) == ("output", 2, 1)
    assert tells(found.words, "output of stage 2", "2nd of step 0", "microbatch 1")
    assert "due" not in found.words
