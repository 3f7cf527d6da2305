"""The page says which two claimed things were in one case, if any were."""

from tests.report.test_together_text import PAIRS, of


def test_the_page_has_a_row_for_every_pair(make, page):
    rows = page(of(make, PAIRS)).one("details", id="together").one("tbody").all("tr")

    assert [[cell.text for cell in row.all("td")] for row in rows] == [
        ["steps", "2 of 2 schedules", ""],
        ["sizes", "1 of 2 schedules", "1F1B"],
        ["ties", "not reached", "1F1B"],
        ["ties", "not reached", "1F1B"],
    ]
    assert not [one for one in page(of(make, ())).all("details") if one.attributes.get("id") == "together"]
