"""The page says what was executed of the implementation, if it was measured."""

from pipeconform.report.coverage import Coverage
from tests.report.test_coverage_text import FILES


def test_the_page_has_the_files_and_what_no_case_entered(page, make):
    measured = Coverage(packages=("engine",), files=FILES)
    section = page(make.changed(make.result(make.cell("FWD-1", "GPipe")), coverage=measured)).one(
        "section", id="coverage"
    )
    (row,) = section.one("tbody").all("tr")

    assert [cell.text for cell in row.all("td")][:2] == ["99 % of 200", "33 % of 3"]
    assert row.one("summary").text == "1 of 2"
    assert row.one("li").text == "never, line 5"


def test_without_a_measurement_there_is_no_such_section(page, make):
    found = page(make.result(make.cell("FWD-1", "GPipe")))

    assert "coverage" not in {one.attributes.get("id") for one in found.all("section")}
