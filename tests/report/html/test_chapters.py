"""The picture of a chapter has a square per requirement, and reads without colours and without eyes."""

import pytest

from pipeconform.report.html.chapters import chapter_rows
from pipeconform.report.standing import STANDINGS
from tests.report.html.conftest import parse


@pytest.fixture
def row():
    found = dict(zip((f"FWD-{k}" for k in range(1, 6)), STANDINGS, strict=True))
    (only,) = chapter_rows(found)
    return only


def test_every_requirement_has_a_square_with_its_title(row):
    drawn = parse(row.picture)
    squares = drawn.all("rect", cls="square")

    assert (row.met, row.total) == (1, len(STANDINGS)) == (1, len(squares))
    assert drawn.all("title")[0].text == "FWD-2 Order and length of the merged output: violated"
    assert {name for square in squares for name in square.attributes["class"].split()} == {
        "square",
        *STANDINGS,
    }


def test_the_numbers_are_told_to_those_who_do_not_see_the_picture(row):
    assert parse(row.picture).one("svg").attributes["aria-label"] == (
        "FWD: 1 violated, 1 blocked, 1 met, 1 not judged, 1 not claimed"
    )


def test_every_standing_has_a_shape_of_its_own(row):
    drawn = parse(row.picture)
    crosses = len(drawn.all("polyline", cls="cross"))
    sizes = [float(square.attributes["width"]) for square in drawn.all("rect", cls="square")]

    assert crosses == 3  # two lines for the violated one, one for the blocked one
    assert sizes == [9, 9, 9, 8, 4]


def test_a_long_chapter_is_broken_into_lines():
    (one,) = chapter_rows({f"FWD-{k}": "met" for k in range(1, 26)})
    svg = parse(one.picture).one("svg")

    assert (svg.attributes["width"], svg.attributes["height"]) == ("220", "22")
