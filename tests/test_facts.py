"""Facts are found in sentences as they are, in order, and nothing else passes for them."""

import pytest

from tests.facts import numbers, tells


def test_facts_are_told_in_their_order_with_anything_between():
    text = "rank 0 sends rank 1 1032 bytes, rank 2 nothing"

    assert tells(text)
    assert tells(text, "rank 0", "rank 1", "1032 bytes", "rank 2")
    assert not tells(text, "rank 1", "rank 0")
    assert not tells(text, "rank 0", "rank 0")


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("rank 10 waits", "rank 1"),
        ("it is -2 times the reference's", "2 times"),
        ("it is 0.2 times the reference's", "2 times"),
        ("it took 2.5", "2"),
        ("misplaced", "placed"),
    ],
)
def test_a_part_of_a_word_or_a_number_is_no_fact(text, fact):
    assert not tells(text, fact)


def test_signs_are_taken_as_they_are():
    assert tells("(1, 0) of float32[1, 0]: -1 times; --out x.", "float32[1, 0]", "-1 times", "--out x")
    assert not tells("float32x1", "float32.1")


def test_numbers_are_those_that_stand_alone():
    assert numbers("microbatch 2 of rank 0, 1F1B with float32[4, 5] and 0.5 s.") == [2, 0, 4, 5]
