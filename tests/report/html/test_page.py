"""A page is made of its results alone: every cell, every violation, and nothing that asks the network."""

import base64
import hashlib
import re

import pytest

from pipeconform.report.causes import Known
from pipeconform.report.html import render_page
from pipeconform.report.html.source import named_sources
from pipeconform.report.result import Control, Expectations

SAME = {"signature": "gradient value", "where": "step 0, rank 1, stage 1"}


def matrix(page):
    return {
        row.one("th").one("a").text: [cell.text for cell in row.all("td")]
        for row in page.one("table", cls="matrix").all("tr", data_row=None)
    }


def ids(page):
    return [element.attributes["id"] for element in page.all() if "id" in element.attributes]


def targets(page):
    return {link.attributes["href"].removeprefix("#") for link in page.all("a")}


@pytest.fixture
def failing(make):
    return make.result(
        make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", **SAME)),
        make.cell("TRN-1", "1F1B", make.violation("TRN-1", "1F1B", **SAME)),
        make.cell("FWD-1", "GPipe", counts={"p=2,v=1": 3, "p=1,v=1": 1}, executions=9, distinct_cases=4),
        make.cell("FWD-1", "1F1B", status="not_claimed", judgements=0, reason="it does not claim that"),
    )


def test_the_matrix_says_of_every_cell_what_the_result_says(page, failing):
    assert matrix(page(failing)) == {"FWD-1": ["✓ ok", "– not claimed"], "TRN-1": ["✗ FAIL", "✗ FAIL"]}


def test_every_status_has_a_symbol_and_a_word_of_its_own(page, make):
    from typing import get_args

    from pipeconform.report.result import Status

    known = get_args(Status)
    result = make.result(
        *(make.cell(f"FWD-{k}", "GPipe", status=status) for k, status in enumerate(known, 1))
    )
    found = page(result)
    shown = [words for (words,) in matrix(found).values()]
    shown += [chip.text.rpartition(" ")[0] for chip in found.all("label", cls="not_claimed")]

    assert len({*shown}) == len(known)
    assert len({words.split()[0] for words in shown}) == len(known)


def test_the_same_violation_under_two_schedules_is_told_once_with_both_places(page, failing):
    found = page(failing)
    (group,) = found.all("details", cls="violation")

    assert group.all("summary")[0].text == (
        "1 TRN-1 Gradients ✗ FAIL gradient value under GPipe, 1F1B"
        " · smallest case: step 0 (train), rank 1, stage 1"
    )
    assert len(group.all("article")) == 2


def test_every_link_leads_somewhere_and_every_place_has_a_name_of_its_own(page, failing, make):
    for one in (page(failing), page(failing, failing), page(make.result())):
        assert targets(one) - {*ids(one)} == set()
        assert len(ids(one)) == len({*ids(one)})


def test_violations_whose_names_collapse_keep_places_of_their_own(make):
    first = make.violation("TRN-1", "A B", id="TRN-1:A B:default:1")
    second = make.violation("TRN-1", "A+B", id="TRN-1:A+B:default:1")
    result = make.result(make.cell("TRN-1", "A B", first), make.cell("TRN-1", "A+B", second))
    (source,) = named_sources([(result, None)])

    assert len({*source.anchors.values()}) == 2


def test_a_violation_shows_where_what_and_how_to_repeat_it(page, make):
    violation = make.violation(
        "TRN-1",
        "GPipe",
        where="step 2, rank 1, stage 1, microbatch 0",
        message="it is wrong\nvalue differs at [0]\n  expected  0.25\n  actual    0.26",
        verdicts="rank 0  returned\nrank 1  returned",
    )
    article = page(make.result(make.cell("TRN-1", "GPipe", violation))).one("article")

    assert [place.text for place in article.all("span", cls="place")] == [
        "step 2 (train)",
        "rank 1",
        "stage 1",
        "microbatch 0",
    ]
    assert article.one("tr", cls="expected").one("b").text == "5"
    assert article.one("tr", cls="actual").one("b").text == "6"
    assert [row.text for row in article.one("table", cls="verdicts").all("tr")[1:]] == [
        "rank 0✓ returned",
        "rank 1✓ returned",
    ]
    assert article.one("div", cls="replay").one("code").text == (
        "pipeconform replay TRN-1:GPipe:default:1f3a --impl torch --result found/result.json"
    )
    program = article.one("ol", cls="program").all("li")
    assert [step.has(cls="bad") for step in program] == [False, False, True]
    assert program[2].text.endswith("✗ 01 ✗ here")


def test_the_first_wrong_computation_is_marked_in_what_ran(page, make):
    violation = make.violation(
        "SCH-2",
        "GPipe",
        timeline=(("0F0", "0F1", "0B0", "0B1"), ("1F0", "1B0", "1F1", "1B1")),
        first_wrong=(1, 1),
    )
    chart = page(make.result(make.cell("SCH-2", "GPipe", violation))).one("svg", cls="gantt")
    frame = chart.one("rect", cls="wrong")
    pointer = chart.one("text", cls="pointer")

    assert pointer.text == "✗ first wrong"
    assert "✗ rank 1" in [label.text for label in chart.all("text", cls="lane")]
    # 1B0 runs from 2 to 4, in units of 34 pixels from 86 on.
    assert abs(float(frame.attributes["x"]) - (86 + 2 * 34)) < 3
    assert abs(float(frame.attributes["width"]) - 2 * 34) < 6


def test_a_computation_that_is_missing_at_the_end_is_marked_behind_the_last_one(page, make):
    violation = make.violation("SCH-1", "GPipe", timeline=(("0F0",), ()), first_wrong=(1, 0))
    chart = page(make.result(make.cell("SCH-1", "GPipe", violation))).one("svg", cls="gantt")

    assert chart.one("text", cls="pointer").text == "✗ missing"


def test_a_first_wrong_computation_of_a_rank_that_is_not_there_is_left_out(page, make):
    violation = make.violation("SCH-1", "GPipe", timeline=(("0F0",), ()), first_wrong=(5, 0))
    chart = page(make.result(make.cell("SCH-1", "GPipe", violation))).one("svg", cls="gantt")

    assert chart.all("text", cls="pointer") == []


def test_counts_are_told_per_schedule_and_size(page, failing):
    details = page(failing).one("details", id="r-FWD-1")
    rows = [[cell.text for cell in row.all("th") + row.all("td")] for row in details.one("tbody").all("tr")]

    assert rows[0] == ["GPipe", "✓ ok", "4", "9", "4", "–", "0.5", "p=1 v=1: 1, p=2 v=1: 3"]
    assert rows[1][0] == "1F1B"
    assert rows[1][-1] == "– it does not claim that"


def test_what_an_implementation_printed_stays_text(page, make):
    evil = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'
    violation = make.violation(
        "TRN-1",
        "GPipe",
        message=evil,
        signature=evil,
        verdicts=f"rank 0  raised    {evil}",
        replay=evil,
        where=evil,
        id=f"TRN-1:{evil}:default:1",
    )
    result = make.result(
        make.cell("TRN-1", "GPipe", violation), make.cell(f"X-1{evil}", evil, status="error", reason=evil)
    )
    result = make.changed(
        result,
        implementation=make.changed(result.implementation, name=evil, version=evil, reference=evil),
        environment=make.changed(result.environment, torch=evil, variables={evil: {evil: evil}}),
    )
    for found in (page(result), page(result, result)):
        assert found.all("img") == []
        assert len(found.all("script")) == 1
        assert not any(name.startswith("on") for element in found.all() for name in element.attributes)


def test_nothing_is_loaded_and_no_script_but_ours_may_run(page, failing):
    text = render_page([(failing, "result.json")])
    found = page(failing)
    policy = found.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()

    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}'" in policy
    assert re.findall(r"https?://", text) == []
    assert {e.attributes["src"] for e in found.all() if "src" in e.attributes} == set()
    assert {e.attributes["href"] for e in found.all("link")} == {"data:,"}


def test_the_totals_are_those_of_the_terminal(page, failing):
    from pipeconform.report.summary import totals

    assert page(failing).one("section", id="counts").one("p", cls="totals").text == "".join(totals(failing))


def test_a_run_without_violation_is_said_to_be_good(page, make):
    found = page(make.result(make.cell("FWD-1", "GPipe")))

    assert found.one("p", cls="verdict").has(cls="good")
    assert "No violation was found." in found.one("section", id="failures").text


def test_a_requirement_of_another_standard_is_shown_without_its_title(page, make):
    result = make.result(
        make.cell("XYZ-9", "GPipe", make.violation("XYZ-9", "GPipe")), make.cell("FWD-1", "GPipe")
    )

    assert list(matrix(page(result))) == ["FWD-1", "XYZ-9"]
    assert "not in this version's standard" in page(result).one("details", id="r-XYZ-9").text


def test_expected_and_flaky_violations_and_wrong_expectations_are_told(page, make):
    expected = make.violation("TRN-1", "GPipe", expected="expectations.toml:3")
    flaky = make.violation(
        "FWD-1", "GPipe", confirmed=False, reruns=3, shown_again=1, id="FWD-1:GPipe:default:2"
    )
    result = make.changed(
        make.result(
            make.cell("TRN-1", "GPipe", expected), make.cell("FWD-1", "GPipe", flaky, status="flaky")
        ),
        expectations=Expectations(
            file="e.toml", digest="0", entries=2, problems=("line 7: matches nothing",)
        ),
    )
    text = page(result).one("section", id="failures").text

    assert "This violation is expected: expectations.toml:3." in text
    assert "flaky: executed again, the case showed it 1 of 3 times" in text
    assert "expectations: line 7: matches nothing" in text


def test_environment_variants_have_columns_in_one_matrix(page, make):
    result = make.result(
        make.cell("FWD-1", "GPipe", variant="debug"),
        make.cell("FWD-1", "GPipe"),
        make.cell("FWD-1", "1F1B", make.violation("FWD-1", "1F1B")),
        make.cell("TRN-1", "GPipe"),
    )
    found = page(result)

    variants = [(one.text, one.attributes["colspan"]) for one in found.all("th", data_variant=None)]
    assert variants == [("default", "2"), ("debug", "1")]
    assert matrix(found) == {"FWD-1": ["✓ ok", "✗ FAIL", "✓ ok"], "TRN-1": ["✓ ok", "· not run", ""]}
    assert targets(found) - {*ids(found)} == set()


def test_without_variants_no_name_stands_over_the_schedules(page, make):
    assert page(make.result(make.cell("FWD-1", "GPipe"))).all("th", data_variant=None) == []


def test_a_page_needs_a_result():
    with pytest.raises(ValueError, match="needs a result"):
        render_page([])


def blocked(make):
    """A violation that is an effect of TRN-1's."""
    control = Control(
        words="without the delay",
        digest="0123",
        requirement="TRN-1",
        status="failed",
        signature="gradient value",
        where="step 0, rank 1",
        message="the gradient of <w> is wrong",
    )
    return make.violation("DPC-6", "GPipe", control=control, id="DPC-6:GPipe:default:2b2b")


def test_causes_come_first_in_the_order_of_harm_with_links(page, make):
    known = (
        Known(
            id="9",
            title="a <finding>",
            link="https://example.org/9",
            requirements=("TRN-1",),
            signature="value",
            file="mine.toml",
        ),
    )
    found = page(
        make.result(
            make.cell("LIF-3", "GPipe", make.violation("LIF-3", "GPipe", signature="outputs kept")),
            make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", **SAME)),
            make.cell("DPC-6", "GPipe", blocked(make), status="blocked"),
        ),
        known=known,
    )
    section, cards = found.one("section", id="causes"), found.one("section", id="failures")
    groups = zip(section.all("h3"), section.all("ol"), strict=True)

    assert [(harm.text, causes.one("li").text) for harm, causes in groups] == [
        ("silently wrong", "TRN-1 Gradients a <finding>"),
        ("leaks and costs", "LIF-3 What stays behind SHOULD outputs kept"),
    ]
    assert [one.attributes["start"] for one in section.all("ol")] == ["1", "2"]
    assert targets(section) == {one.attributes["id"] for one in cards.all("details", cls="violation")}
    assert [one.all("h3")[0].text for one in cards.all("div", cls="harm")] == [
        "silently wrong 1",
        "leaks and costs 1",
    ]
    assert cards.all("span", cls="known")[0].text == "known as finding 9: a <finding> https://example.org/9"
    assert "blocked: DPC-6 under GPipe (by TRN-1)" in cards.text
    assert targets(found) - {*ids(found)} == {"https://example.org/9"}


def test_a_card_s_heading_is_about_the_requirement_that_it_names(page, make):
    known = Known(
        file="k", id="8", title="t", link="l", requirements=("FWD-2", "FWD-24"), signature="length|raised"
    )
    raised = {"signature": "raised RuntimeError: no", "status": "error"}
    found = page(
        make.result(
            make.cell("FWD-2", "A", make.violation("FWD-2", "A", signature="output length")),
            make.cell("FWD-2", "B"),
            make.cell("FWD-24", "B", make.violation("FWD-24", "B", **raised, occurrences=3)),
        ),
        known=[known],
    )
    card = found.one("details", cls="violation")

    assert card.all("summary")[0].text.startswith(
        "1 FWD-2 Order and length of the merged output ✗ FAIL output length under A ·"
    )
    assert [one.text.rpartition(" also ")[2] for one in card.all("p", cls="statement")[1:]] == [
        "violated under B"
    ]
    assert "Shown by 5 drawn cases of this cause, 2 of them here." in card.all("article")[0].text
    assert "Shown by 3 drawn cases." in card.all("article")[1].text
    assert set(card.attributes["data-statuses"].split()) == {"f", "e"}


def test_a_card_of_several_outcomes_says_which_is_where(page, make):
    cells = [
        make.cell("FWD-2", "A", make.violation("FWD-2", "A")),
        make.cell("FWD-2", "B", make.violation("FWD-2", "B", status="error")),
    ]
    known = Known(file="k", id="8", title="t", link="l", requirements=("FWD-2",), signature="value")

    card = page(make.result(*cells), known=[known]).one("details", cls="violation")

    assert "✗ FAIL ! ERR" in card.all("summary")[0].text
    assert "FAIL under A; ERR under B" in card.all("summary")[0].text


def test_a_card_of_a_requirement_that_was_not_selected_has_the_status_that_controls_showed(page, make):
    control = Control(digest="d", requirement="FWD-1", status="hung", signature="hang")
    effects = [
        make.cell(name, "GPipe", make.violation(name, "GPipe", control=control), status="blocked")
        for name in ("TRN-1", "TRN-3")
    ]
    card = page(make.result(*effects)).one("details", cls="violation")

    assert card.all("summary")[0].text.startswith("1 FWD-1 Outputs ∞ HUNG")
    assert card.one("p", cls="shown").text == "⊘ block TRN-1 under GPipe"
    assert "Shown by 4 drawn cases of this cause, 2 of them here." in card.all("article")[0].text
    assert set(card.attributes["data-statuses"].split()) == {"h", "b"}


def test_levels_list_what_is_in_their_way_with_titles_and_links(page, make):
    found = page(
        make.result(
            make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")),
            make.cell("FWD-24", "GPipe", make.violation("FWD-24", "GPipe", signature="not refused")),
            make.cell("FWD-2", "GPipe"),
        )
    )
    section = found.one("section", id="levels")
    forward = section.one("details", id="level-forward")
    chips = found.one("div", cls="levels").all("a")

    assert [chip.attributes["href"] for chip in chips][:2] == ["#level-forward", "#level-training"]
    assert forward.one("summary").text.startswith("✗ Forward 1 violated decided by 32 requirements")
    assert [one.text for one in forward.all("li")] == ["FWD-1 Outputs"]
    assert forward.one("a").attributes["href"] == "#v-FWD-1-GPipe-default-1f3a-group"
    assert section.children[-2].text == "Violated, but only SHOULD: FWD-24 Batches refused alike."


def test_a_blocked_cell_leads_to_what_its_control_showed(page, make):
    found = page(
        make.result(
            make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", **SAME)),
            make.cell("DPC-6", "GPipe", blocked(make), status="blocked"),
        )
    )
    assert matrix(found)["DPC-6"] == ["⊘ block"]
    (cause,) = found.all("details", cls="violation")
    card = cause.one("details", id="v-DPC-6-GPipe-default-2b2b")
    control = card.one("div", cls="control")

    assert control.one("p").text == (
        "blocked: without the delay, TRN-1 is violated (failed: gradient value), whose business it is case 0123"
    )
    assert control.one("pre").text == "step 0, rank 1 the gradient of <w> is wrong"
    assert cause.attributes["data-statuses"] == "f b"


def test_a_violation_that_only_a_control_showed_says_whose(page, make):
    violation = make.violation("TRN-1", "GPipe", found_by="DPC-6:GPipe:default:2b2b")

    assert (
        "Found by the control of DPC-6:GPipe:default:2b2b."
        in page(make.result(make.cell("TRN-1", "GPipe", violation))).text
    )


def test_a_result_without_violations_lists_no_causes(page, make):
    section = page(make.result(make.cell("TRN-1", "GPipe"))).one("section", id="causes")

    assert section.text == "What is broken Nothing, in what was judged."
    assert section.all("ol") == []


def test_a_card_says_what_to_do_next(page, make):
    violation = make.violation("LIF-3", "GPipe", signature="outputs kept")
    found = page(make.result(make.cell("LIF-3", "GPipe", violation), make.cell("LIF-3", "1F1B")))

    assert (
        found.one("p", cls="next").text == "Next drop references to outputs when the step has returned them"
    )


def test_a_cell_that_hung_does_not_lead_to_a_card_that_speaks_only_of_an_error(page, make):
    raised = make.violation("FWD-1", "GPipe", status="error", signature="raised", id="FWD-1:GPipe:default:1")
    hung = make.violation("FWD-1", "GPipe", status="hung", signature="hang", id="FWD-1:GPipe:default:2")
    found = page(make.result(make.cell("FWD-1", "GPipe", raised, hung, status="hung")))
    link = found.one("table", cls="matrix").one("a", cls="status")
    card = card_of(found, link.attributes["href"].removeprefix("#"))

    assert link.text in [one.text for one in card.all("span", cls="status")]


def card_of(found, anchor):
    """The folded card that opens for a link."""
    cards = found.all("details", cls="other") + found.all("details", cls="violation")
    return next(one for one in cards if one.attributes["id"] == anchor or one.all(id=anchor))


def test_what_nobody_claims_is_folded_away_from_the_matrix(page, make):
    found = page(
        make.result(
            make.cell("FWD-1", "GPipe"),
            make.cell("FWD-2", "GPipe", status="not_claimed", judgements=0, reason="it lacks <that>"),
            make.cell("FWD-3", "GPipe", status="not_claimed", judgements=0),
            make.cell("FWD-3", "1F1B"),
        )
    )
    fold = found.one("details", id="unclaimed")

    assert list(matrix(found)) == ["FWD-1", "FWD-3"]
    assert fold.one("summary").text == "Not claimed: 1 requirement"
    assert [row.text for row in fold.one("tbody").all("tr")] == [
        "FWD-2 Order and length of the merged output MUST it lacks <that>".replace(" MUST ", "MUST")
    ]
    assert found.one("header").one("a", href="#unclaimed").text == "1 requirement is not claimed"
    assert found.one("section", id="chapters").one("a", href="#unclaimed").text == "1 not claimed"
    assert "open" not in fold.attributes
