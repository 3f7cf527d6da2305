"""A comparison begins with what is fixed, worse and new, and with what tells the results apart."""

import pytest

from pipeconform.report.html.news import identities, news
from pipeconform.report.html.source import named_sources


def dated(make, result, *, version, created):
    return make.changed(
        result, created=created, implementation=make.changed(result.implementation, version=version)
    )


@pytest.fixture
def pair(make):
    def cell(name, schedule="GPipe", **fields):
        return make.cell(name, schedule, make.violation(name, schedule, **fields))

    old = make.result(cell("FWD-1"), cell("TRN-1", signature="gradient value"), make.cell("TRN-1", "1F1B"))
    new = make.result(
        make.cell("FWD-1", "GPipe"),
        cell("TRN-1", signature="gradient value"),
        cell("TRN-1", "1F1B", signature="gradient value"),
        cell("LIF-7", signature="boundary tensors beyond the bound"),
    )
    return (
        dated(make, old, version="1.0", created="2026-01-02T03:04:05+00:00"),
        dated(make, new, version="2.0", created="2026-02-02T03:04:05+00:00"),
    )


def test_the_headline_counts_causes_and_every_cause_leads_to_its_card(page, pair):
    found = page(*pair)
    section = found.one("section", cls="news")
    groups = {one.one("h2").text: one.one("li").text for one in section.all("div", cls="group")}

    assert section.one("p", cls="verdict").text == "1 fixed, 1 worse, 1 new"
    assert section.one("p", cls="verdict").has(cls="bad")
    assert groups == {
        "New": "LIF-7 Memory of activations boundary tensors beyond the bound · under GPipe · leaks and costs",
        "Worse: the same cause, with more violations": (
            "TRN-1 Gradients gradient value · under GPipe, 1F1B · silently wrong · now also TRN-1 under 1F1B"
        ),
        "Fixed": "FWD-1 Outputs output value · under GPipe · silently wrong",
    }
    cards = {one.attributes["id"] for one in found.all("details", cls="violation")}
    assert {link.attributes["href"].removeprefix("#") for link in section.all("a")} <= cards


def test_nothing_new_is_good_and_what_is_no_longer_judged_is_open(make, pair):
    old, new = pair

    def told(*results):
        (one,) = news(named_sources([(result, None) for result in results]))
        return one.headline, one.rest, one.tone

    assert told(new, new) == ("0 fixed, 0 worse, 0 new", "2 as before", "good")
    assert told(old, make.changed(old, cells=old.cells[:1])) == (
        "0 fixed, 0 worse, 0 new",
        "1 as before, 1 no longer judged",
        "open",
    )


def test_every_other_result_is_compared_with_the_first(pair):
    old, new = pair
    found = news(named_sources([(old, None), (new, None), (old, None)]))

    assert [(one.old, one.new, one.headline) for one in found] == [
        ("A", "B", "1 fixed, 1 worse, 1 new"),
        ("A", "C", "0 fixed, 0 worse, 0 new"),
    ]


def test_versions_and_times_tell_the_results_apart_and_what_is_equal_is_left_out(page, pair):
    table = page(*pair).one("table", cls="identities")

    assert [cell.text for cell in table.one("thead").all("th")] == ["Result", "release", "run of"]
    assert [row.text for row in table.one("tbody").all("tr")] == [
        "Atoy GPipe 1.02026-01-02 03:04 UTC",
        "Btoy GPipe 2.02026-02-02 03:04 UTC",
    ]


def test_two_runs_of_one_release_differ_in_what_they_differ_in(make, pair):
    old, _ = pair
    other = make.changed(old, run=make.changed(old.run, seed=7))
    one, two = identities(named_sources([(old, "a/result.json"), (other, "b/result.json")]))

    assert [name for name, _ in one.facts] == ["release", "run of", "profile", "file"]
    assert two.facts[2:] == (("profile", "smoke, seed 7"), ("file", "b/result.json"))
