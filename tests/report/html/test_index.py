"""The index has a row for every result, with links to its page, and what every chapter and level says of it."""

import re
from pathlib import Path

import pytest

from pipeconform.report.collection import Collected, Collection
from pipeconform.report.html import render_index
from tests.report.html.conftest import parse


@pytest.fixture
def index(make):
    def named(result, name, version):
        given = make.changed(result.implementation, name=name, version=version)
        return make.changed(result, implementation=given)

    met = make.result(make.cell("FWD-1", "GPipe"), make.cell("TRN-1", "GPipe"))
    wrong = make.result(
        make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")),
        make.cell("FWD-2", "GPipe"),
        make.cell("COM-1", "GPipe", status="not_claimed", judgements=0),
    )
    found = Collection(
        results=(
            Collected(path=Path("a/result.json"), result=named(met, "toy <b>", "1.9")),
            Collected(path=Path("b c/result.json"), result=named(wrong, "toy <b>", "1.10")),
            Collected(path=Path("other.json"), result=named(met, "another", "3")),
        ),
        unreadable=("d/result.json: damaged, not JSON",),
    )
    return parse(render_index(found, name="nightly"))


def test_rows_of_one_release_are_told_apart_by_folder_time_and_adapter(make):
    """Two nights and a fork have the same name, version, profile and device."""
    night = make.result(make.cell("FWD-1", "GPipe"))
    later = make.changed(night, created="2026-01-02T23:59:05+00:00")
    fork = make.changed(
        night, implementation=make.changed(night.implementation, reference="planted.py:NotDivided")
    )
    found = Collection(
        results=(
            Collected(path=Path("first/result.json"), result=night),
            Collected(path=Path("second/result.json"), result=later),
            Collected(path=Path("fork.json"), result=fork),
        ),
        unreadable=(),
    )

    assert sorted(row[0] for row in rows(parse(render_index(found, name="nightly")))) == [
        "1.0first2026-01-02 03:04 UTC · smoke · cpu",
        "1.0fork.json2026-01-02 03:04 UTC · smoke · cpu · planted.py:NotDivided",
        "1.0second2026-01-02 23:59 UTC · smoke · cpu",
    ]


def rows(index):
    return [
        [cell.text for cell in row.all("th") + row.all("td")]
        for row in index.all("tr")
        if "data-implementation" in row.attributes
    ]


def test_results_stand_by_implementation_with_the_newest_release_first(index):
    assert [(re.match(r"[\d.]+", row[0])[0], row[1]) for row in rows(index)] == [
        ("3", "✓ Meets all 2 judged requirements"),
        ("1.10", "✗ Violates 1 of 2 judged requirementssilently wrong 1"),
        ("1.9", "✓ Meets all 2 judged requirements"),
    ]
    assert [one.text for one in index.all("tr", cls="name")] == ["another", "toy <b> history"]


def test_chapters_come_in_the_order_of_the_standard_each_with_what_is_met(index):
    heading = [
        one.text
        for one in index.one("thead").all("th")
        if "of-level" not in (one.attributes.get("class") or "")
    ]
    boxes = [row[2 : len(heading)] for row in rows(index)]

    assert heading == ["Release", "Verdict", "FWD", "TRN", "COM"]
    assert boxes == [
        ["✓met 1/1", "✓met 1/1", ""],
        ["✗violated 1/2", "", "–not claimed"],
        ["✓met 1/1", "✓met 1/1", ""],
    ]


def test_every_result_and_history_has_its_link(index):
    assert [one.attributes["href"] for one in index.all("a") if one.text != "Skip to the results"] == [
        "other.json.html",
        "history-toy-b-.html",
        "b%20c/report.html",
        "a/report.html",
    ]


def test_what_could_not_be_read_is_named(index):
    assert "d/result.json: damaged, not JSON" in index.one("main").text
