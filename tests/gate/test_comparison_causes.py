"""Two results are compared by cause: new ones, those that are gone, and those that other requirements show."""

import pytest

from pipeconform.gate.comparison import compare
from pipeconform.gate.comparison_text import render_comparison
from pipeconform.observe.localisation import Deviation, Localisation
from pipeconform.report.causes import Known
from pipeconform.report.result import Control


def localised(likeness):
    first = Deviation(direction="weight gradient", step=0, stage=0, tensor="w", text="", likeness=likeness)
    return {
        "signature": "gradient value",
        "localisation": Localisation(first=first, compared=4, wrong=1),
    }


SCALED = localised("it is 2 times the reference's")


def blocked(by="FWD-1", requirement="DPC-6"):
    control = Control(
        words="without the delay", digest="d", requirement=by, status="failed", signature="output value"
    )
    return {"control": control, "id": f"{requirement}:GPipe:default:2b2b"}


@pytest.fixture
def results(make):
    """The old and the new result, of cells with one violation each or none."""

    def two(before, after):
        def result(rows):
            cells = []
            for (requirement, schedule), fields in rows.items():
                shown = () if fields is None else (make.violation(requirement, schedule, **fields),)
                cells.append(make.cell(requirement, schedule, *shown))
            return make.result(*cells)

        return result(before), result(after)

    return two


def told(comparison):
    return [(one.kind, one.requirement) for one in comparison.causes]


def kinds(comparison):
    return [(one.kind, one.requirement) for one in comparison.changes]


def test_a_cause_that_only_the_new_result_has_is_new(results):
    comparison = compare(*results({("FWD-1", "GPipe"): None}, {("FWD-1", "GPipe"): {}}))

    assert told(comparison) == [("new", "FWD-1")]
    assert comparison.blocked


def test_a_cause_that_is_gone_is_fixed_if_its_cells_are_judged(results):
    assert told(compare(*results({("FWD-1", "GPipe"): {}}, {("FWD-1", "GPipe"): None}))) == [
        ("fixed", "FWD-1")
    ]
    assert told(compare(*results({("FWD-1", "GPipe"): {}}, {("FWD-2", "GPipe"): None}))) == [
        ("lost", "FWD-1")
    ]


def test_a_blocked_cell_that_comes_or_goes_with_its_cause_is_no_regression(results):
    """The cause is what it was; which effects the drawn cases show is chance."""
    alone = {("FWD-1", "GPipe"): {}, ("DPC-6", "GPipe"): None}
    both = {("FWD-1", "GPipe"): {}, ("DPC-6", "GPipe"): blocked()}

    for before, after in ((alone, both), (both, alone)):
        comparison = compare(*results(before, after))
        assert (kinds(comparison), comparison.blocked) == ([("effect", "DPC-6")], False)
        assert told(comparison) == [("same", "FWD-1")]
        assert "causes (0 fixed, 0 worse, 0 new; 1 as before)\n" in render_comparison(comparison, "text")


def test_a_blocked_cell_whose_cause_is_new_blocks_by_the_cause_alone(results):
    met = {("FWD-1", "GPipe"): None, ("DPC-6", "GPipe"): None}

    comparison = compare(*results(met, {("FWD-1", "GPipe"): {}, ("DPC-6", "GPipe"): blocked()}))

    assert sorted(kinds(comparison)) == [("effect", "DPC-6"), ("regressed", "FWD-1")]
    assert comparison.blocked


def test_a_blocked_cell_without_its_cause_is_a_regression(results):
    """Nothing else in the result would tell that something got worse."""
    comparison = compare(*results({("DPC-6", "GPipe"): None}, {("DPC-6", "GPipe"): blocked()}))

    assert (kinds(comparison), told(comparison)) == ([("regressed", "DPC-6")], [("new", "FWD-1")])


def test_results_from_before_controls_are_compared_with_those_that_have_them(results):
    """What was accused and is blocked now is the same violation."""
    comparison = compare(
        *results(
            {("FWD-1", "GPipe"): {}, ("DPC-6", "GPipe"): {}},
            {("FWD-1", "GPipe"): {}, ("DPC-6", "GPipe"): blocked()},
        )
    )

    assert (kinds(comparison), comparison.blocked) == ([], False)
    assert told(comparison) == [("same", "FWD-1")]


def test_the_same_cause_in_another_requirement_is_no_regression(results):
    comparison = compare(
        *results(
            {("TRN-3", "GPipe"): SCALED, ("TRN-1", "GPipe"): None},
            {("TRN-3", "GPipe"): SCALED, ("TRN-1", "GPipe"): SCALED},
        )
    )

    assert (kinds(comparison), comparison.blocked) == ([("elsewhere", "TRN-1")], False)
    assert (
        render_comparison(comparison, "text")
        .splitlines()[-1]
        .startswith("not blocked: causes: 0 fixed, 1 worse,")
    )
    (cause,) = comparison.causes
    assert (cause.kind, cause.also, cause.no_longer) == ("same", ("TRN-1",), ())
    assert "  worse: TRN-3 Gradient scale: gradient value, m times the reference's under GPipe" in (
        text := render_comparison(comparison, "text")
    )
    assert "; now also in TRN-1\n" in text


@pytest.mark.parametrize(
    ("where", "fields"),
    [
        (("TRN-1", "1F1B"), SCALED),  # another schedule got worse
        (("TRN-1", "GPipe"), localised("it is 8 times the reference's")),
        (("TRN-1", "GPipe"), {"signature": "gradient value"}),
    ],
)
def test_what_is_not_surely_the_same_cause_is_a_regression(results, where, fields):
    before = {("TRN-3", "GPipe"): SCALED, where: None}

    comparison = compare(*results(before, before | {where: fields}))

    assert (kinds(comparison), comparison.blocked) == ([("regressed", "TRN-1")], True)


def test_a_cause_under_another_schedule_says_so(results):
    before = {("FWD-1", "GPipe"): {}, ("FWD-1", "1F1B"): None}

    comparison = compare(*results(before, {("FWD-1", "GPipe"): {}, ("FWD-1", "1F1B"): {}}))

    (cause,) = comparison.causes
    assert (cause.kind, cause.also_under) == ("same", ("1F1B",))
    assert "; now also under 1F1B" in render_comparison(comparison, "text")


def test_a_finding_is_one_cause_whatever_shows_it(results):
    entry = Known(
        id="4",
        title="nothing is sent",
        link="a.py",
        requirements=("FWD-1", "FWD-2"),
        signature="output",
        file="mine.toml",
    )
    old, new = results(
        {("FWD-1", "GPipe"): {}, ("FWD-2", "GPipe"): None}, {("FWD-1", "GPipe"): None, ("FWD-2", "GPipe"): {}}
    )

    assert sorted(told(compare(old, new))) == [("fixed", "FWD-1"), ("new", "FWD-2")]
    (cause,) = compare(old, new, known=[entry]).causes
    assert (cause.kind, cause.also, cause.no_longer, cause.known) == (
        "same",
        ("FWD-2",),
        ("FWD-1",),
        ("finding 4: nothing is sent",),
    )


def test_markdown_lists_causes_that_changed(results):
    comparison = compare(*results({("FWD-1", "GPipe"): None}, {("FWD-1", "GPipe"): {}}))

    assert "- new: FWD-1 Outputs: output value under GPipe (silently wrong)" in render_comparison(
        comparison, "markdown"
    )


@pytest.mark.parametrize(("chance", "kind"), [(True, "sometimes"), (False, "regressed")])
def test_a_finding_that_shows_by_chance_is_no_regression_where_it_did_not_show_before(results, chance, kind):
    entry = Known(
        id="12",
        title="counted twice",
        link="a.py",
        requirements=("SPL-1", "TRN-8"),
        signature="value",
        chance=chance,
        file="mine.toml",
    )
    old, new = results(
        {("SPL-1", "ZBV"): {}, ("TRN-8", "DualPipeV"): None},
        {("SPL-1", "ZBV"): None, ("TRN-8", "DualPipeV"): {}},
    )

    comparison = compare(old, new, known=[entry])
    assert sorted(kinds(comparison)) == [("fixed", "SPL-1"), (kind, "TRN-8")]
    assert comparison.blocked is not chance
    assert compare(*results({("TRN-8", "A"): None}, {("TRN-8", "A"): {}}), known=[entry]).blocked


def test_what_is_known_to_show_by_chance_says_so(results):
    entry = Known(
        id="1", title="t", link="a.py", requirements=("FWD-1",), signature=".", chance=True, file="mine.toml"
    )
    old, new = results({("FWD-1", "A"): {}, ("FWD-1", "B"): None}, {("FWD-1", "A"): None, ("FWD-1", "B"): {}})

    text = render_comparison(compare(old, new, known=[entry]), "text")

    assert "flaky, but known (1 cell):" in text
    assert "known to show by chance; the output of microbatch 0 is not the reference's" in text
