"""The index and the history in Chromium: filters, links, both sizes, both colour schemes."""

from __future__ import annotations

import pytest

from pipeconform.commands.report import write_index
from pipeconform.report.result import write_result
from tests.report.html.chromium import IN_CHROMIUM, LOOKS, axe, in_sight, settled

pytestmark = IN_CHROMIUM

EVERYTHING = ["another 3", "toy 2.0", "toy 1.0"]


@pytest.fixture
def site(make, tmp_path):
    """Three results of two implementations, and their pages."""
    wrong = make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", signature="gradient value"))
    unclaimed = make.cell("FWD-2", "GPipe", status="not_claimed", judgements=0)
    given = {
        "toy 1.0": [make.cell("FWD-1", "GPipe"), wrong],
        "toy 2.0": [make.cell("FWD-1", "GPipe"), make.cell("TRN-1", "GPipe")],
        "another 3": [make.cell("FWD-1", "GPipe"), unclaimed, make.changed(unclaimed, requirement="COM-1")],
    }
    for name, cells in given.items():
        result = make.result(*cells)
        said, version = name.split()
        named = make.changed(result.implementation, name=said, version=version)
        write_result(make.changed(result, implementation=named), tmp_path / name / "result.json")
    write_index(tmp_path, tmp_path)
    return tmp_path


def rows(tab):
    return tab.eval_on_selector_all(
        "tr[data-implementation]",
        "all => all.filter(e => e.checkVisibility()).map(e => `${e.dataset.implementation} ${e.dataset.release}`)",
    )


def columns(tab):
    return tab.eval_on_selector_all(
        ".index thead th", "all => all.filter(e => e.checkVisibility()).map(e => e.textContent)"
    )


@pytest.mark.parametrize("look", LOOKS)
def test_every_filter_narrows_and_clearing_brings_all_back(shown, site, look):
    tab = shown(site / "index.html", **look)

    def chosen(**wanted):
        for name, value in wanted.items():
            tab.locator(f"#{name}").select_option(value)
        found = rows(tab), columns(tab)
        tab.get_by_role("button", name="Clear").click()
        settled(tab)
        assert rows(tab) == EVERYTHING
        return found

    assert rows(tab) == EVERYTHING
    assert columns(tab) == ["Release", "Verdict", "FWD", "TRN", "COM"]
    assert chosen(implementation="toy")[0] == ["toy 2.0", "toy 1.0"]
    assert chosen(release="3")[0] == ["another 3"]
    assert chosen(standing="violated")[0] == ["toy 1.0"]
    assert chosen(standing="not_claimed")[0] == ["another 3"]
    assert chosen(standing="blocked")[0] == []
    assert chosen(part="chapter-FWD", standing="not_claimed")[0] == []
    assert chosen(part="chapter-TRN") == (["toy 2.0", "toy 1.0"], ["Release", "Verdict", "TRN"])
    assert chosen(part="chapter-TRN", standing="met")[0] == ["toy 2.0"]
    assert chosen(part="level-training", standing="violated") == (
        ["toy 1.0"],
        ["Release", "Verdict", "Training"],
    )


def test_a_filtered_index_can_be_linked(shown, site):
    tab = shown(site / "index.html")
    tab.locator("#implementation").select_option("toy")
    tab.locator("#standing").select_option("violated")
    fragment = tab.evaluate("location.hash")

    assert rows(shown(site / "index.html", fragment=fragment)) == ["toy 1.0"]
    assert rows(shown(site / "index.html", fragment="#release=%3Cb%3E&other=1")) == EVERYTHING


def test_without_javascript_all_results_are_there(shown, site):
    tab = shown(site / "index.html", java_script_enabled=False)

    assert not tab.locator("#filters").is_visible()
    assert tab.locator(".index").get_by_role("link", name="1.0").is_visible()


@pytest.mark.parametrize("look", LOOKS)
def test_every_link_leads_to_a_page_that_opens(shown, site, look):
    tab = shown(site / "index.html", **look)
    for name, heading in (("1.0", "toy 1.0"), ("history", "toy, 1.0 to 2.0")):
        tab.locator(".index").get_by_role("link", name=name, exact=True).click()
        tab.get_by_role("heading", level=1, name=heading).wait_for()
        tab.go_back()


@pytest.mark.parametrize("look", LOOKS)
def test_a_history_shows_its_verdict_its_changes_and_behind_a_row_the_violations(shown, site, look):
    tab = shown(site / "history-toy.html", **look)
    heads = tab.locator(".matrix thead th").all_inner_texts()
    cells = tab.locator(".matrix tbody tr").first.locator("th, td").all_inner_texts()
    fold = tab.locator("details[id='TRN-1']")

    assert " ".join(tab.locator(".verdict").inner_text().split()) == (
        "✓ 2.0: Meets all 2 judged requirements since 1.0: 0 broken, 1 mended"
    )
    assert in_sight(tab.locator(".verdict"))
    assert [" ".join(one.split()) for one in heads] == [
        "Requirement",
        "1.0 2026-01-02 03:04 UTC",
        "2.0 2026-01-02 03:04 UTC",
        "History",
    ]
    assert [" ".join(one.split()) for one in cells] == [
        "TRN-1 Gradients",
        "✗ FAIL 1/1",
        "✓ ok",
        "mended in 2.0",
    ]
    story = tab.locator(".matrix td.story").first
    story.scroll_into_view_if_needed()
    assert in_sight(story)

    assert not fold.get_by_text("GPipe: failed, gradient value").is_visible()
    tab.locator(".matrix").get_by_role("link", name="TRN-1").click()
    fold.get_by_text("GPipe: failed, gradient value").wait_for(state="visible")
    assert in_sight(fold)


def test_a_link_to_a_requirement_of_a_history_opens_it(shown, site):
    tab = shown(site / "history-toy.html", fragment="#TRN-1")

    assert tab.get_by_text("GPipe: failed, gradient value").is_visible()


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", ["index.html", "history-toy.html"])
def test_axe_finds_nothing_and_the_page_fits(shown, site, look, name):
    tab = shown(site / name, **look)

    assert tab.evaluate("document.documentElement.scrollWidth") <= look["viewport"]["width"]
    assert axe(tab) == []
