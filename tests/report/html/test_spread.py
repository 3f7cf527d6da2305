"""The table of where an error begins."""

import msgspec

from pipeconform.observe.localisation import Localisation
from pipeconform.report.html.spread import spread_view
from tests.report.test_localisation_text import FOUND


def test_the_first_wrong_tensor_is_the_only_one_that_is_framed():
    view = spread_view(FOUND)

    framed = [(row.name, row.stage, k) for row in view.rows for k, mark in enumerate(row.marks) if mark.first]
    assert framed == [("output gradient", 1, 2)]
    assert view.microbatches == 3
    assert [row.whole for row in view.rows[-3:]] == [True, True, True]
    assert "output gradient of stage 1, microbatch 2" in view.sentence


def test_one_wrong_tensor_is_told_in_the_singular():
    one = msgspec.structs.replace(FOUND, wrong=1, compared=20)

    assert spread_view(one).note == "1 tensor of 20 is wrong, over all steps."
    assert " are wrong, over all steps." in spread_view(FOUND).note


def test_a_page_shows_where_an_error_begins(make, page):
    violation = make.violation("TRN-1", "GPipe", localisation=FOUND)
    shown = page(make.result(make.cell("TRN-1", "GPipe", violation)))

    table = shown.one("table", cls="spread")
    assert len(table.all("td", cls="wrong")) == 5
    (first,) = table.all("td", cls="first")
    assert first.text == "✗wrong, the first"


def test_a_page_without_one_has_no_such_table(make, page):
    shown = page(make.result(make.cell("TRN-1", "GPipe", make.violation("TRN-1", "GPipe"))))

    assert shown.all("table", cls="spread") == []


def test_without_a_wrong_tensor_there_is_nothing_to_show():
    assert spread_view(Localisation(first=None, compared=3, wrong=0)) is None
    assert spread_view(None) is None


def test_what_the_message_says_already_is_not_repeated():
    alike = msgspec.structs.replace(FOUND.first, likeness="")
    said = f"the gradient of output 0 is wrong\n{FOUND.first.text}"

    assert spread_view(FOUND).lines[0] == "gradient of output 0: it is 0.5 times the reference's"
    assert spread_view(FOUND, said=said).lines == spread_view(FOUND).lines[:1]
    assert spread_view(msgspec.structs.replace(FOUND, first=alike), said=said).lines == ()
