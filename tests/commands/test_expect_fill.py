"""Expectations are proposed, proposed again, filled in and explained; nothing is run."""

import pytest

from pipeconform.report.result import write_result
from tests.report.conftest import make

__all__ = ["make"]


@pytest.fixture
def proposed(typed, make, tmp_path):
    """A folder with a result of two failures, and the file that was proposed for it."""
    cells = [
        make.cell(one, "GPipe", make.violation(one, "GPipe", id=f"{one}:GPipe:default:1f3a"))
        for one in ("TRN-4", "FWD-1")
    ]
    write_result(make.result(*cells), tmp_path / "result.json")
    code, out, err = typed("expect", "update", "--write", "result.json")
    assert (code, err) == (0, "")
    return out


def test_a_file_that_was_written_is_written_again(typed, proposed, tmp_path):
    before = (tmp_path / "pipeconform-expectations.toml").read_text()
    code, out, err = typed("expect", "update", "--write", "result.json")

    assert (code, err) == (0, "")
    assert (tmp_path / "pipeconform-expectations.toml").read_text() == before
    assert "2 entries lack reason, issue, owner, expires: pipeconform expect fill " in proposed
    assert "2 entries lack" in out


def test_fields_are_filled_in_until_nothing_is_left(typed, proposed):
    some = typed("expect", "fill", "TRN", "--owner", "us", "--expires", "2031-01-01")[1]
    rest = typed(
        "expect",
        "fill",
        "--owner",
        "them",
        "--expires",
        "2031-01-01",
        "--reason",
        "r",
        "--issue",
        "https://x.org",
    )[1]

    assert some.splitlines() == [
        "filled in owner, expires: 1 entry of pipeconform-expectations.toml",
        "2 entries lack reason, issue; 1 entry lacks owner, expires: "
        "pipeconform expect fill FWD-1 --reason … --issue … --owner … --expires …",
    ]
    assert rest.splitlines() == [
        "filled in reason, issue: 2 entries; owner, expires: 1 entry (1 keeps its own; --again replaces) "
        "of pipeconform-expectations.toml"
    ]
    assert "owner     us" in typed("expect", "explain", "TRN-4")[1]
    assert "owner     them" in typed("expect", "explain", "FWD-1")[1]


def test_what_was_not_filled_in_is_said(typed, proposed):
    typed("expect", "fill", "TRN-4", "--owner", "us")
    out = typed("expect", "fill", "TRN-4", "LIF", "COM-1", "--owner", "them")[1]

    assert out.splitlines()[:2] == [
        "filled in owner: 0 entries (1 keeps its own; --again replaces) of pipeconform-expectations.toml",
        "no entry is about LIF, COM-1",
    ]
    assert "owner     us" in typed("expect", "explain", "TRN-4")[1]
    out = typed("expect", "fill", "TRN-4", "--owner", "them", "--again")[1]
    assert out.startswith("filled in owner: 1 entry of ")
    assert "owner     them" in typed("expect", "explain", "TRN-4")[1]


def test_entries_that_an_update_drops_are_named(typed, proposed, make, tmp_path):
    write_result(
        make.result(make.cell("TRN-4", "GPipe"), make.cell("FWD-1", "GPipe")), tmp_path / "right.json"
    )
    out = typed("expect", "update", "--write", "right.json")[1]

    assert out.startswith("wrote pipeconform-expectations.toml: entries: 0, cases: 0\ndropped ")
    assert ": TRN-4 failed 'output value', which no longer shows\n" in out
    assert ": FWD-1 failed 'output value', which no longer shows\n" in out


def test_a_cause_is_filled_in_as_a_whole(typed, proposed):
    out = typed("expect", "fill", "--cause", "accumulation", "--owner", "us")[1]

    assert out.startswith("filled in owner: 1 entry ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fill",), "nothing to fill in: give --reason, --issue, --owner or --expires"),
        (("fill", "--issue", "PROJ-7"), "--issue 'PROJ-7' is not a link; expected https://…"),
        (("fill", "COM", "--owner", "us"), "has no such entry; it is about "),
        (("explain", "TRN4"), "unknown requirement or chapter 'TRN4'; nearest: TRN-4"),
        (("explain", "TRN-4", "--file", "pipeconform-expectation.toml"), "nearest: pipeconform-expectations"),
    ],
)
def test_what_cannot_be_filled_in_or_explained_is_said_in_one_line(typed, proposed, arguments, words):
    code, out, err = typed("expect", *arguments)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_an_explanation_says_whether_the_result_shows_the_failure(typed, proposed):
    out = typed("expect", "explain", "TRN-4", "--result", "result.json")[1]

    assert "  result    result.json (torch) shows it: TRN-4:GPipe:default:1f3a" in out.splitlines()
