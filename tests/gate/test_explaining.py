"""An entry of an expectations file in words."""

import datetime

import msgspec
import pytest

from pipeconform.gate.expectations import read_expectations
from pipeconform.gate.explaining import explained
from pipeconform.gate.proposal import propose, write_proposal

TODAY = datetime.date(2030, 6, 1)


@pytest.fixture
def failing(make):
    violation = make.violation("TRN-4", "GPipe", id="TRN-4:GPipe:default:1f3a")
    return make.result(make.cell("TRN-4", "GPipe", violation))


@pytest.fixture
def entry(failing, tmp_path):
    def read(**fields):
        path = tmp_path / "known.toml"
        write_proposal(propose(failing, **fields), path)
        return read_expectations(path, drafts=True).entries[0]

    return read


def test_a_filled_entry_says_what_why_and_until_when(entry, failing):
    filled = entry(reason="known", issue="https://x.org/1", owner="us", expires=datetime.date(2030, 6, 3))
    lines = explained(filled, today=TODAY, result=failing).splitlines()

    assert lines == [
        "known.toml:5: TRN-4 Accumulation over steps",
        "  expects   failed 'output value' under GPipe",
        "  cause     TRN-4 Accumulation over steps: output value",
        "  reason    known",
        "  issue     https://x.org/1",
        "  owner     us",
        "  expires   2030-06-03, in 2 days",
        "  cases     pipeconform-expectations/TRN-4.GPipe.default.1f3a.json",
        "  shows     " + filled.stored[0].text,
        "  result    shows it: TRN-4:GPipe:default:1f3a",
    ]


def test_a_draft_says_how_it_is_filled_in(entry):
    last = explained(entry(owner="us"), today=TODAY).splitlines()[-1]

    assert last == "  next      pipeconform expect fill TRN-4 --reason … --issue … --expires …"


def test_an_entry_that_has_expired_says_what_to_do(entry):
    text = explained(
        entry(reason="r", issue="https://x.org", owner="us", expires=datetime.date(2030, 5, 31)), today=TODAY
    )

    assert "2030-05-31, 1 day ago: the entry fails every run" in text
    assert text.endswith("mend TRN-4, or pipeconform expect fill TRN-4 --expires … --again")


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (("TRN-4", "GPipe"), "does not show it: 'pipeconform expect update' drops the entry"),
        (("TRN-4", "1F1B"), "did not judge it"),
        (("FWD-1", "GPipe"), "did not judge it"),
    ],
)
def test_an_entry_says_if_a_result_shows_something_else(entry, make, cell, words):
    assert f"  result    {words}" in explained(entry(), today=TODAY, result=make.result(make.cell(*cell)))


def test_an_entry_that_is_limited_says_to_what(entry):
    narrow = msgspec.structs.replace(
        entry(), p=(2, 4), v=(1,), device="cuda", torch=">=2.14", schedules=("GPipe", "1F1B")
    )

    assert explained(narrow, today=TODAY).splitlines()[1] == (
        "  expects   failed 'output value' under GPipe, 1F1B, p = 2, 4, v = 1, on cuda, with torch >=2.14"
    )
    everywhere = msgspec.structs.replace(entry(), schedules=())
    assert explained(everywhere, today=TODAY).splitlines()[1] == (
        "  expects   failed 'output value' under every schedule"
    )


def test_an_entry_holds_on_the_day_on_which_it_expires(entry):
    text = explained(entry(reason="r", issue="https://x.org", owner="us", expires=TODAY), today=TODAY)

    assert "  expires   2030-06-01, in 0 days" in text
    assert "  next " not in text
