"""What became of a cell: one judgement, for the gate and for the page."""

import pytest

from pipeconform.report.change import Changes, aligned, is_judged, shown


@pytest.fixture
def said(make):
    def changes(before, after):
        old, new = (make.result(*([cell] if cell else [])) for cell in (before, after))
        return [
            (one.kind, one.violation.signature if one.violation else "")
            for one in Changes(old, new).of(before, after)
        ]

    return changes


def test_a_cell_that_says_the_same_did_not_change(make, said):
    failing = make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe"))

    assert said(failing, failing) == said(make.cell("TRN-1", "GPipe"), make.cell("TRN-1", "GPipe")) == []


def test_a_violation_is_told_apart_by_status_and_signature(make, said):
    one = make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", signature="a"))
    other = make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", signature="a", status="hung"))

    assert said(one, other) == [("regressed", "a"), ("fixed", "a")]
    assert [*shown(one), *shown(other)] == [("failed", "a"), ("hung", "a")]


def test_what_was_not_judged_before_is_new_or_added(make, said):
    failing = make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", signature="a"))
    silent = make.cell("TRN-1", "GPipe", status="skipped", judgements=0)

    assert said(None, failing) == said(silent, failing) == [("new", "a")]
    assert said(None, make.cell("TRN-1", "GPipe")) == [("added", "")]


def test_what_is_judged_no_longer_is_lost_whatever_it_said(make, said):
    failing = make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe"))

    assert said(failing, None) == said(make.cell("TRN-1", "GPipe"), None) == [("lost", "")]


def test_expected_violations_change_nothing_and_flaky_ones_show_sometimes(make, said):
    def cell(**fields):
        return make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe", signature="a", **fields))

    assert said(make.cell("TRN-1", "GPipe"), cell(expected="known.toml:3")) == []
    assert said(cell(confirmed=False), cell(confirmed=False)) == [("sometimes", "a")]


def test_a_cell_with_a_violation_counts_as_judged_however_few_its_judgements(make):
    told = make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe"), judgements=0)

    assert is_judged(told)
    assert not is_judged(make.cell("TRN-1", "GPipe", status="error", judgements=0))
    assert not is_judged(None)


def test_cells_stand_side_by_side_the_last_results_order_first(make):
    one = make.result(make.cell("FWD-1", "GPipe"), make.cell("FWD-2", "GPipe"))
    other = make.result(make.cell("FWD-3", "GPipe"), make.cell("FWD-2", "GPipe"))

    assert {key[0]: [cell is not None for cell in cells] for key, cells in aligned([one, other]).items()} == {
        "FWD-3": [False, True],
        "FWD-2": [True, True],
        "FWD-1": [True, False],
    }
    assert next(iter(aligned([one, other])))[0] == "FWD-3"
