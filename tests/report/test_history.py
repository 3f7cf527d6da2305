"""Where over many results a requirement was broken or mended."""

import msgspec
import pytest

from pipeconform.report.history import history_of


def of(make, version, *cells, created="2026-01-02T03:04:05+00:00"):
    result = make.result(*cells)
    implementation = msgspec.structs.replace(result.implementation, version=version)
    return msgspec.structs.replace(result, implementation=implementation, created=created)


@pytest.fixture
def wrong(make):
    return make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe"))


@pytest.fixture
def right(make):
    return make.cell("TRN-1", "GPipe")


@pytest.fixture
def unjudged(make):
    return make.cell("TRN-1", "GPipe", status="not_claimed", judgements=0)


def test_versions_are_ordered_by_number_and_before_their_release_come_nightlies(make, right):
    given = ["2.10.0", "2.9.1", "2.15.0", "2.15.0.dev20261001+cpu", "2.15.0rc1", "2.11.0+cu130"]
    found = history_of([of(make, version, right) for version in given], by="version")

    assert [one.label for one in found.columns] == [
        "2.9.1",
        "2.10.0",
        "2.11.0+cu130",
        "2.15.0.dev20261001+cpu",
        "2.15.0rc1",
        "2.15.0",
    ]


def test_results_of_one_version_are_told_apart_by_their_time(make, right):
    given = [of(make, "main", right, created=f"2026-01-0{day}T03:04:05+00:00") for day in (3, 1, 2)]

    assert [one.label for one in history_of(given, by="created").columns] == [
        "main (2026-01-01 03:04)",
        "main (2026-01-02 03:04)",
        "main (2026-01-03 03:04)",
    ]


def test_results_of_one_minute_or_second_are_told_apart_too(make, right, wrong):
    """Otherwise a change would be said of both."""
    times = [("00:01", right), ("00:02", wrong), ("00:02", right)]
    given = [of(make, "main", cell, created=f"2026-01-01T03:{time}+00:00") for time, cell in times]
    found = history_of(given, by="created")

    assert [one.label for one in found.columns] == [
        "main (2026-01-01 03:00:01)",
        "main (2026-01-01 03:00:02) #1",
        "main (2026-01-01 03:00:02) #2",
    ]
    assert found.rows[0].story == f"broken in {found.columns[1].label}, mended in {found.columns[2].label}"


def test_a_change_is_named_with_the_first_result_that_shows_it(make, right, wrong):
    cells = {"1.0": right, "1.1": wrong, "1.2": wrong, "1.3": right}
    (row,) = history_of([of(make, version, cell) for version, cell in cells.items()], by="version").rows

    assert row.story == "broken in 1.1, mended in 1.3"


def test_a_result_that_did_not_judge_it_is_passed_over(make, unjudged, wrong):
    cells = {"1.0": wrong, "1.1": unjudged, "1.2": wrong}
    (row,) = history_of([of(make, version, cell) for version, cell in cells.items()], by="version").rows

    assert row.story == "always"
    assert row.states[1].is_wrong is None


def test_what_changed_last_comes_first(make):
    def cells(*wrong):
        names = ("TRN-1", "TRN-2", "TRN-3", "TRN-4")
        return [
            make.cell(name, "GPipe", *([make.violation(name, "GPipe")] if name in wrong else []))
            for name in names
        ]

    given = [("1.0", ("TRN-3",)), ("1.1", ("TRN-2", "TRN-3")), ("1.2", ("TRN-2", "TRN-3", "TRN-4"))]
    found = history_of([of(make, version, *cells(*wrong)) for version, wrong in given], by="version")

    assert [(row.requirement, row.story) for row in found.rows] == [
        ("TRN-4", "broken in 1.2"),
        ("TRN-2", "broken in 1.1"),
        ("TRN-3", "always"),
        ("TRN-1", "never"),
    ]


def test_schedules_are_counted_and_violations_named(make, right, wrong):
    other = make.cell("TRN-1", "1F1B", make.violation("TRN-1", "1F1B", status="hung", signature="stuck"))
    state = (
        history_of([of(make, "1.0", wrong, other, make.cell("TRN-1", "ZBV"))], by="version").rows[0].states[0]
    )

    assert (state.status, state.wrong, state.judged) == ("hung", 2, 3)
    assert state.signatures == ("1F1B: hung, stuck", "GPipe: failed, output value")
