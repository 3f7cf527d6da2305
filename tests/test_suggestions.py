"""Which names are suggested for an unknown one."""

import pytest

from pipeconform.errors import UnknownNameError
from pipeconform.suggestions import nearest
from tests.facts import tells

IDS = ["FWD-1", "FWD-14", "FWD-4", "TRC-4", "TRN-4"]


@pytest.mark.parametrize(
    ("name", "first"),
    [("fwd4", "FWD-4"), ("TRN_4", "TRN-4"), ("TNR-4", "TRN-4"), ("FWD-141", "FWD-14")],
)
def test_the_nearest_name_comes_first_whatever_its_case_and_punctuation(name, first):
    assert nearest(name, IDS)[0] == first


def test_a_name_that_differs_in_case_and_punctuation_only_is_the_only_one():
    assert nearest("fwd_4", IDS) == ("FWD-4",)


def test_another_spelling_stands_for_the_known_name():
    assert nearest("1f1b", ["gpipe", "one_f_one_b"], {"1F1B": "one_f_one_b"}) == ("one_f_one_b",)


def test_a_beginning_is_near_to_what_it_begins_and_the_other_way_round():
    assert nearest("split", ["forward", "split-backward-level"]) == ("split-backward-level",)
    assert nearest("--implementation", ["--impl", "--out"]) == ("--impl",)


def test_nothing_is_suggested_for_what_is_like_nothing():
    assert nearest("XYZ", IDS) == ()


def test_an_unknown_name_that_is_like_nothing_names_the_command_that_lists_all_or_some_of_them():
    many = [f"name{number}" for number in range(10)]
    listed = str(UnknownNameError("level", "gold", many, listed_by="pipeconform list --levels"))
    assert tells(listed, "unknown level", "'gold'", "'pipeconform list --levels'")
    assert "name0" not in listed
    few = str(UnknownNameError("level", "gold", ["full"], listed_by="pipeconform list --levels"))
    assert few == "unknown level 'gold'; known: full"
    assert tells(str(UnknownNameError("thing", "?", ["a", "b"])), "unknown thing", "'?'", "known", "a", "b")
    assert str(UnknownNameError("thing", "?", many)).endswith("name6, name7, …")
    assert str(UnknownNameError("thing", "?", [])) == "unknown thing '?'; known: none"
