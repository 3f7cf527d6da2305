"""Which changes of a comparison are told as one."""

import pytest

from pipeconform.gate.comparison import compare
from pipeconform.gate.comparison_entries import cells_of, entries_of


@pytest.fixture
def entries(make):
    """The entries of a kind when GPipe and 1F1B met TRN-4 before, and show violations with these fields now."""

    def found(kind, *several):
        names = ("GPipe", "1F1B")
        old = make.result(*(make.cell("TRN-4", one) for one in names))
        cells = [
            make.cell("TRN-4", one, make.violation("TRN-4", one, **fields))
            for one, fields in zip(names, several, strict=True)
        ]
        return entries_of(compare(old, make.result(*cells)), kind)

    return found


def test_one_wrong_value_under_two_schedules_is_told_once_whatever_numbers_it_shows(entries):
    (entry,) = entries("regressed", {"message": "it is 3, not 4"}, {"message": "it is 5, not 4"})

    assert entry.schedules == ("GPipe", "1F1B")
    assert entry.what == "failed: output value; it is 3, not 4"


@pytest.mark.parametrize(("again", "number"), [(2, 1), (3, 2)])
def test_what_shows_by_chance_is_told_together_only_if_it_shows_as_often(entries, again, number):
    flaky = {"confirmed": False, "reruns": 5}
    found = entries("flaky", {**flaky, "shown_again": 2}, {**flaky, "shown_again": again})

    assert len(found) == number


@pytest.mark.parametrize(
    ("number", "named"),
    [(6, "6 requirements (FWD-1, FWD-2, FWD-3, FWD-4, FWD-5, FWD-6)"), (7, "7 requirements (FWD 7)")],
)
def test_up_to_six_requirements_are_named_and_more_are_counted_by_chapter(make, number, named):
    names = [f"FWD-{n}" for n in range(1, number + 1)]
    old = make.result(*(make.cell(name, "GPipe") for name in (*names, "TRN-4")))
    (entry,) = entries_of(compare(old, make.result(make.cell("TRN-4", "GPipe"))), "lost")

    assert entry.titled == named
    assert cells_of(entry.changes) == number
