"""Hints about what a wrong value is."""

import pytest
import torch

from pipeconform.judge.localise.hints import likeness, scaled
from pipeconform.observe.array import Array

RIGHT = torch.tensor([0.1, -2.3, 4.7, 0.9], dtype=torch.float64)
OTHER = torch.tensor([5.0, 1.5, 0.25, 3.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("mine", "told"),
    [
        (OTHER, "it is microbatch 2's"),
        (RIGHT * 0, "it is zero everywhere"),
        (RIGHT * 0.25, "it is 0.25 times the reference's"),
        (RIGHT.bfloat16().double(), "it is the reference's, rounded to bfloat16"),
        (RIGHT.float().double(), "it is the reference's, rounded to float32"),
        (RIGHT + torch.tensor([0.0, 1.0, 0.0, 0.0]), ""),
        (RIGHT[:3], ""),
    ],
)
def test_a_wrong_value_is_recognised(mine, told):
    peers = {1: Array.of(RIGHT), 2: Array.of(OTHER)}

    assert likeness(Array.of(RIGHT), Array.of(mine), peers, own=1) == told


@pytest.mark.parametrize("k", [0, 1, 2])
def test_every_other_microbatch_is_asked(k):
    peers = {n: Array.of(RIGHT + n) for n in range(4)}

    assert likeness(peers[3], peers[k], peers, own=3) == f"it is microbatch {k}'s"


def test_integers_are_no_multiples():
    one, two = Array.of(torch.tensor([1, 2])), Array.of(torch.tensor([2, 4]))

    assert likeness(one, two, {0: one}, own=0) == ""


def test_a_factor_of_one_changes_nothing():
    value = Array.of(RIGHT)

    assert scaled(value, 1.0) is value
    assert scaled(value, 2.0) == Array.of(2 * RIGHT)


def test_what_is_right_is_like_nothing_else():
    right = Array.of(RIGHT)
    narrow = Array.of(RIGHT.float())

    assert likeness(right, right, {0: right, 1: right}, own=0) == ""
    assert likeness(narrow, narrow, {0: narrow}, own=0) == ""


def test_one_number_alone_has_every_factor():
    one, two = (Array.of(torch.tensor([value], dtype=torch.float64)) for value in (1.5, 3.7))

    assert likeness(one, two, {0: one}, own=0) == ""


def test_another_dtype_is_told_elsewhere():
    assert likeness(Array.of(RIGHT), Array.of(RIGHT.float() * 2), {}, own=0) == ""
