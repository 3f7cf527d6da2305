"""Two results or more: what differs comes first, and each cell says what every result says."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeconform.gate.comparison import compare
from pipeconform.report.html.comparison import differences, warnings
from pipeconform.report.html.source import named_sources
from pipeconform.spec import requirements

KNOWN = {row.id: row for row in requirements()}


@pytest.fixture
def compared(make):
    def compare(*results):
        return differences(named_sources([(result, None) for result in results]), known=KNOWN)

    return compare


def said(found):
    return [(one.identifier, [side.status.key for side in one.sides]) for one in found]


def test_equal_results_do_not_differ(compared, make):
    result = make.result(
        make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe")), make.cell("FWD-1", "GPipe")
    )

    assert compared(result, result) == ()


def test_what_is_broken_here_and_met_there_comes_first(compared, make):
    broken = make.violation("TRN-14", "GPipe")
    one = make.result(
        make.cell("FWD-1", "GPipe", status="not_claimed", judgements=0),
        make.cell("FWD-2", "GPipe", make.violation("FWD-2", "GPipe", signature="one way")),
        make.cell("TRN-14", "GPipe", broken),
        make.cell("LIF-5", "GPipe", status="error"),
    )
    other = make.result(
        make.cell("FWD-1", "GPipe"),
        make.cell("FWD-2", "GPipe", make.violation("FWD-2", "GPipe", signature="another way")),
        make.cell("TRN-14", "GPipe"),
    )

    assert said(compared(one, other)) == [
        ("TRN-14", ["failed", "passed"]),
        ("LIF-5", ["error", "not_run"]),
        ("FWD-2", ["failed", "failed"]),
        ("FWD-1", ["not_claimed", "passed"]),
    ]


def test_the_same_case_in_other_words_is_no_difference(compared, make):
    one = make.result(make.cell("FWD-2", "GPipe", make.violation("FWD-2", "GPipe", message="0.1")))
    other = make.result(make.cell("FWD-2", "GPipe", make.violation("FWD-2", "GPipe", message="0.2")))

    assert compared(one, other) == ()


def test_each_side_says_what_became_of_it_in_the_words_of_the_gate(compared, make):
    met = make.result(make.cell("FWD-1", "GPipe"), make.cell("TRN-4", "GPipe"))
    broken = make.result(
        make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")),
        make.cell(
            "TRN-4", "GPipe", make.violation("TRN-4", "GPipe", confirmed=False, reruns=5, shown_again=1)
        ),
    )
    found = compared(met, broken, make.result(make.cell("FWD-1", "GPipe")))

    assert [[side.changes for side in one.sides] for one in found] == [
        [(), ("regressed",), ()],
        [(), ("flaky",), ("lost",)],
    ]


def test_what_is_judged_nowhere_is_no_difference(compared, make):
    silent = make.cell("FWD-1", "GPipe", status="not_claimed", judgements=0)
    skipped = make.cell("FWD-1", "GPipe", status="skipped", judgements=0)

    assert compared(make.result(silent), make.result(skipped), make.result()) == ()


STATUSES = ("failed", "hung", "crashed", "error")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_page_and_the_gate_never_disagree_about_a_verdict(data, make, compared):
    def cell(schedule):
        kinds = data.draw(st.sets(st.tuples(st.sampled_from(STATUSES), st.sampled_from("ab")), max_size=2))
        violations = [
            make.violation(
                "TRN-1",
                schedule,
                id=f"{schedule}{status}{signature}",
                status=status,
                signature=signature,
                confirmed=data.draw(st.booleans()),
                expected=data.draw(st.sampled_from(["", "known.toml:3"])),
            )
            for status, signature in sorted(kinds)
        ]
        silent = not violations and data.draw(st.booleans())
        others = {"status": "not_claimed", "judgements": 0} if silent else {}
        return make.cell("TRN-1", schedule, *violations, **others)

    schedules = ("GPipe", "1F1B", "ZBVZeroBubble")
    old, new = (make.result(*map(cell, data.draw(st.sets(st.sampled_from(schedules))))) for _ in range(2))
    gate = {}
    for change in compare(old, new).changes:
        gate.setdefault(change.schedule, set()).add(change.kind)

    assert {one.schedule: set(one.sides[1].changes) for one in compared(old, new)} == gate


def test_what_else_differs_is_said_so_that_nobody_blames_the_implementation(make):
    one = make.result(make.cell("FWD-1", "GPipe"))
    other = make.changed(one, standard_version="9", run=make.changed(one.run, seed=5, complete=False))

    assert warnings(named_sources([(one, None), (other, None)])) == (
        "standard differs: A 0.1; B 9",
        "profile differs: A smoke, seed 0; B smoke, seed 5",
        "B was stopped early: cells are missing",
    )


def test_a_page_of_three_results_shows_them_side_by_side(page, make):
    good = make.result(make.cell("FWD-1", "GPipe"))
    bad = make.result(make.cell("FWD-1", "GPipe", make.violation("FWD-1", "GPipe")))
    found = page(good, bad, make.result(make.cell("FWD-1", "1F1B")))
    (row,) = found.one("table", cls="matrix").all("tr", data_row=None)

    assert [one.attributes["aria-label"] for one in found.all("section", cls="news")] == [
        "From A to B",
        "From A to C",
    ]
    assert [
        cell.text for row in found.one("table", id="differences-table").all("tr", data_row=None)
        for cell in row.all("td")
    ] == [
        "GPipe",
        "✓ ok",
        "✗ FAIL regressedoutput value",
        "· not run lost",
        "1F1B",
        "· not run",
        "· not run",
        "✓ ok added",
    ]  # fmt: skip
    assert [cell.text for cell in row.all("td")] == [
        "A ✓ okB ✗ FAILC · not run",
        "A · not runB · not runC ✓ ok",
    ]
    assert found.one("article").attributes["id"] == "v-B-FWD-1-GPipe-default-1f3a"
    assert [
        row.all("td")[0].text for row in found.one("table", id="differences-table").one("tbody").all("tr")
    ] == [
        "GPipe",
        "1F1B",
    ]


def test_more_results_than_letters_are_numbered(make):
    labels = [source.label for source in named_sources([(make.result(), None)] * 28)]

    assert labels[:2] + labels[25:] == ["A", "B", "Z", "27", "28"]
