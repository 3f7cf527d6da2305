"""What ranks tell each other of their plans, and what is wrong with it."""

from __future__ import annotations

import dataclasses

import pytest
from pipeconform.reference_impl.agreement import Agreement, Told

from tests.facts import tells

KIND = ("float64[2, 3]",)
ONE = Told(position=0, schedule="GPipe", num_stages=2, num_microbatches=3, declared=None)


def _problems(*others: dict[str, object]) -> list[str]:
    ranks = [ONE] + [dataclasses.replace(ONE, position=1 + k, **one) for k, one in enumerate(others)]  # type: ignore[arg-type]
    return list(Agreement().problems(ranks, num_ranks=len(ranks)))


def test_equal_plans_are_right() -> None:
    assert _problems({}, {}) == []


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"schedule": "1F1B"}, "ranks 0 and 2 were given different plans: schedules 'GPipe' and '1F1B'"),
        ({"num_stages": 4}, "different plans: 2 and 4 stages"),
        ({"num_microbatches": 5}, "different plans: 3 and 5 microbatches"),
        (
            {"problem": "5 stages are not a multiple of 3 ranks"},
            "pipeline rank 2: 5 stages are not a multiple",
        ),
        ({"declared": {1: (KIND, KIND)}}, "on some ranks only, not on pipeline rank 0, 1"),
    ],
)
def test_what_differs_is_told_with_whose_it_is(other: dict[str, object], words: str) -> None:
    found = _problems({}, other)

    assert len(found) == 1
    assert words in found[0]


def test_what_two_stages_say_of_their_boundary_is_compared_whichever_rank_they_are_on() -> None:
    said = {0: ((), KIND), 1: (KIND, KIND), 2: (("float32[2, 3]",), KIND)}

    (told,) = Agreement().disagreements(said)
    assert tells(told, "stage 1 gives float64[2, 3]", "stage 2 takes float32[2, 3]")
    assert list(Agreement().disagreements({0: said[0], 2: said[2]})) == []
