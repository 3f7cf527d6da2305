"""Which two claimed things were in one case, in words and on the page."""

from pipeconform.report.result import Together
from pipeconform.report.together_text import missing_lines, together_lines

PAIRS = (
    Together(of=("loads", "steps"), under=("GPipe", "1F1B")),
    Together(of=("loads", "sizes"), under=("GPipe",), not_under=("1F1B",)),
    Together(of=("loads", "ties"), not_under=("1F1B",)),
    Together(of=("steps", "ties"), not_under=("1F1B",)),
)


def of(make, pairs):
    result = make.result(make.cell("TRN-22", "GPipe"))
    return make.changed(result, totals=make.changed(result.totals, together=pairs))


def test_the_pairs_are_counted_and_those_that_are_missing_named(make):
    result = of(make, PAIRS)

    assert list(together_lines(result)) == [
        "2 of 4 pairs of claimed things were reached, 1 of them under every schedule that allows them"
    ]
    assert list(missing_lines(result)) == [
        "  not reached: loads with ties",
        "  not reached: steps with ties",
    ]


def test_a_run_without_any_has_no_such_line(make):
    assert list(together_lines(of(make, PAIRS[2:]))) == list(missing_lines(of(make, PAIRS[2:]))) == []
