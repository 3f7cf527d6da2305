"""Requirements by id or chapter, ranks by number or range."""

import pytest

from pipeconform.errors import UnknownNameError, UsageError
from pipeconform.spec import requirements
from pipeconform.spec.selection import parse_ranks, select_requirements
from pipeconform.spec.wrappers import wrapper_chapter


@pytest.mark.parametrize(
    ("text", "expected"), [("4", (4, 4)), ("1-4", (1, 4)), (" 2-8 ", (2, 8)), ("1", (1, 1))]
)
def test_ranks_are_a_number_or_a_range(text, expected):
    assert parse_ranks(text) == expected


@pytest.mark.parametrize("text", ["", "0", "0-3", "3-2", "9", "1-9", "a", "-3", "1-", "2.5", "1-2-3"])
def test_other_ranks_are_refused_with_the_forms_there_are(text):
    with pytest.raises(UsageError, match=r"--ranks .* expected N or A-B with 1 ≤ A ≤ B ≤ 8"):
        parse_ranks(text)


def test_nothing_asked_for_means_everything():
    assert select_requirements(()) == {row.id for row in requirements()}


def test_a_chapter_means_its_requirements():
    assert select_requirements(["trn"]) == {row.id for row in requirements() if row.id.startswith("TRN-")}


def test_ids_and_chapters_add_up():
    assert select_requirements(["fwd-1", "LIF"]) > {"FWD-1"}


def test_what_a_wrapper_is_judged_by_is_another_choice():
    of_wrappers = {row.id for row in wrapper_chapter().requirements}

    assert (
        select_requirements((), kind="wrapper") == select_requirements(["dpw"], kind="wrapper") == of_wrappers
    )
    assert select_requirements(["dpw-2"], kind="wrapper") == {"DPW-2"}
    with pytest.raises(UsageError, match="DPW-2 does not apply: the implementation is a pipeline"):
        select_requirements(["TRN", "DPW-2"])


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown requirement or chapter 'FW-1'; nearest: FWD-1"):
        select_requirements(["TRN-1", "FW-1"])
