"""What changed in words and counts."""

import pytest

from pipeconform.report.change_words import as_before, cause_headline, cell_counts


@pytest.mark.parametrize(
    ("causes", "headline", "rest"),
    [
        ([], "0 fixed, 0 worse, 0 new", ""),
        (["new", "same", "lost"], "0 fixed, 0 worse, 1 new", "1 as before, 1 no longer judged"),
        (["new", "new", "worse", "fixed"], "1 fixed, 1 worse, 2 new", ""),
    ],
)
def test_causes_are_counted_and_none_is_said_to_be_none(causes, headline, rest):
    assert (cause_headline(causes), as_before(causes)) == (headline, rest)


def test_cells_are_counted_by_what_became_of_them():
    assert cell_counts({}, unchanged=2) == "2 cells unchanged"
    assert (
        cell_counts({"lost": 86, "regressed": 1, "fixed": 0}, unchanged=17)
        == "1 cell regressed, 86 no longer judged, 17 unchanged"
    )
