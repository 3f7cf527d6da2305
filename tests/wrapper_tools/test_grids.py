"""Grids of options: every point or all pairs, named, and run one by one."""

from __future__ import annotations

import itertools

import pytest

from pipeconform.errors import UsageError
from pipeconform.wrapper_tools import covering, every_point, name_of, run_each

AXES = {
    "strategy": ("full", "gradients", "none"),
    "prefetch": (False, True),
    "precision": (None, "bf16"),
    "nesting": ("root", "children", "nested", "uneven"),
    "optimizer": ("sgd", "adam"),
}


def _allowed(point: dict) -> bool:
    return not (point["strategy"] == "none" and point["prefetch"])


def _pairs(points: list[dict]) -> set[tuple]:
    return {
        pair
        for point in points
        for pair in itertools.combinations(sorted((k, str(v)) for k, v in point.items()), 2)
    }


@pytest.mark.parametrize("allowed", [None, _allowed])
def test_every_pair_that_can_meet_meets_in_far_fewer_points_than_there_are(allowed) -> None:
    few, every = covering(AXES, allowed=allowed), every_point(AXES, allowed=allowed)

    assert _pairs(few) == _pairs(every)
    assert len(few) <= 2 * 3 * 4 < len(every)
    assert all(point in every for point in few)


def test_the_first_point_is_the_plainest_and_the_same_ones_come_every_time() -> None:
    assert covering(AXES) == covering(AXES)
    assert covering(AXES)[0] == {name: values[0] for name, values in AXES.items()}


def test_one_axis_or_one_point_is_all_there_is() -> None:
    assert covering({"a": (1, 2, 3)}) == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert covering({"a": (1,), "b": (2,)}) == [{"a": 1, "b": 2}]


def test_an_axis_without_values_is_refused() -> None:
    with pytest.raises(UsageError, match="axis 'b' has no values"):
        every_point({"a": (1,), "b": ()})


def test_names_are_readable() -> None:
    point = {
        "strategy": "full",
        "prefetch": True,
        "offload": False,
        "precision": None,
        "ranks": 2,
        "loss": max,
    }

    assert name_of(point) == "strategy=full-prefetch-no_offload-precision=none-ranks=2-loss=max"


def test_all_points_run_and_each_failure_has_its_name() -> None:
    seen = []

    def body(*, a: int, b: bool) -> None:
        seen.append((a, b))
        if a == 2:
            raise ValueError(f"not {a}")

    with pytest.raises(AssertionError) as told:
        run_each(every_point({"a": (1, 2), "b": (True, False)}), body)

    assert len(seen) == 4
    assert str(told.value).splitlines() == [
        "2 of 4 failed",
        "a=2-b: ValueError: not 2",
        "a=2-no_b: ValueError: not 2",
    ]
    assert isinstance(told.value.__cause__, ValueError)


def test_no_point_at_all_is_no_success() -> None:
    with pytest.raises(UsageError, match="no point"):
        run_each([], print)
