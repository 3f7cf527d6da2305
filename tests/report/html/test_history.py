"""The page of a history: which release broke or mended what, and how its results differ otherwise."""

import pytest

from pipeconform.report.html import render_history
from tests.report.html.conftest import parse


@pytest.fixture
def release(make):
    """A result of a version in which these requirements are violated under one of two schedules."""

    def made(version, *wrong, day=1, unclaimed=(), **fields):
        cells = [
            make.cell(name, schedule, make.violation(name, schedule, signature=f"{name} is wrong"))
            if name in wrong and schedule == "GPipe"
            else make.cell(name, schedule, status="not_claimed" if name in unclaimed else "passed")
            for name in ("FWD-1", "TRN-1", "TRN-4")
            for schedule in ("GPipe", "1F1B")
        ]
        result = make.changed(make.result(*cells), created=f"2026-01-{day:02}T03:04:05+00:00", **fields)
        return make.changed(result, implementation=make.changed(result.implementation, version=version))

    return made


@pytest.fixture
def three(release):
    """TRN-1 is mended, TRN-4 broken, and FWD-1 always met."""
    return [
        release("1.10", "TRN-4", day=3),
        release("1.9", "TRN-1", day=2),
        release("1.8", "TRN-1", day=1, unclaimed=["TRN-4"]),
    ]


def table(page):
    return [[cell.text for cell in row.all("th") + row.all("td")] for row in page.all("tr")]


def test_columns_are_releases_with_their_dates_and_rows_what_was_ever_wrong(three):
    page = parse(render_history(three, by="version"))

    assert table(page) == [
        [
            "Requirement",
            "1.8 2026-01-01 03:04 UTC",
            "1.9 2026-01-02 03:04 UTC",
            "1.10 2026-01-03 03:04 UTC",
            "History",
        ],
        ["TRN-1 Gradients", "✗ FAIL 1/2", "✗ FAIL 1/2", "✓ ok", "mended in 1.10"],
        ["TRN-4 Accumulation over steps", "· not run", "✓ ok", "✗ FAIL 1/2", "broken in 1.10"],
    ]
    assert "Met wherever judged, or not judged: FWD-1." in page.text


def test_results_of_one_version_have_their_time_once(release):
    heads, *_ = table(parse(render_history([release("1.0", "TRN-1"), release("1.0", day=2)], by="created")))

    assert heads == ["Requirement", "1.0 (2026-01-01 03:04)", "1.0 (2026-01-02 03:04)", "History"]


def test_it_begins_with_the_verdict_on_the_last_release_and_what_changed_since_the_one_before(three):
    verdict = parse(render_history(three, by="version")).one("p", cls="verdict")

    assert verdict.text.startswith(
        "✗ 1.10: Violates 1 of 3 judged requirements since 1.9: 1 broken, 1 mended"
    )
    assert verdict.has(cls="bad")


def test_one_result_has_nothing_to_be_compared_with(release):
    page = parse(render_history([release("1.0")], by="version"))

    assert page.one("p", cls="verdict").text.startswith("✓ 1.0: Meets all 3 judged requirements")
    assert "since" not in page.one("header").text
    assert "No violation was found in any of them." in page.text


def test_a_row_leads_to_the_violations_of_every_release_that_has_any(three):
    page = parse(render_history(three, by="version"))
    links = [one.attributes["href"][1:] for one in page.one("table").all("a")]
    folds = {one.attributes["id"]: one for one in page.all("details")}

    assert links == list(folds) == ["TRN-1", "TRN-4"]
    assert [one.text for one in folds["TRN-1"].all("h3")] == ["1.8", "1.9"]
    assert [one.text for one in folds["TRN-4"].all("li")] == ["GPipe: failed, TRN-4 is wrong"]


def test_what_else_differs_between_the_results_is_a_warning(release, make):
    other = release("1.1", standard_version="9")
    stopped = make.changed(other, run=make.changed(other.run, profile="core", complete=False))
    page = parse(render_history([release("1.0"), stopped], by="version"))

    assert [one.text.removeprefix("⚠ ") for one in page.all("p", cls="warning")] == [
        "the standard differs: 0.1, 9",
        "the profile differs: smoke, core",
        "1.1 was stopped early: cells are missing",
    ]


def test_names_from_a_result_are_text_and_no_markup(release, make):
    result = release("1<b>", "TRN-1")
    named = make.changed(result.implementation, name="<script>x</script>")
    page = parse(render_history([make.changed(result, implementation=named)], by="created"))

    assert page.one("h1").text.startswith("<script>x</script>, 1<b> ")
