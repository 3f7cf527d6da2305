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
        "2 entries lack reason, issue, owner, expires: pipeconform expect fill "
        + some.split("expect fill ")[1].split()[0]
        + " --reason … --issue … --owner … --expires …",
    ]
    assert (
        rest
        == "filled in owner, expires, reason, issue: 2 entries of pipeconform-expectations.toml\n".replace(
            "owner, expires, reason, issue", "reason, issue, owner, expires"
        )
    )
    assert "owner     us" in typed("expect", "explain", "TRN-4")[1]
    assert "owner     them" in typed("expect", "explain", "FWD-1")[1]


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

    assert "  result    shows it: TRN-4:GPipe:default:1f3a" in out.splitlines()
