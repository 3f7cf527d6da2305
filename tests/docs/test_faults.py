"""The page of the faults lists every one, and the committed one is up to date."""

import pytest
from pipeconform.reference_impl.faults import FAULTS
from pipeconform.reference_impl.faults.page import faults_page


def test_every_fault_has_a_row_with_what_it_breaks():
    rows = [line for line in faults_page().splitlines() if line.startswith("| `")]

    assert len(rows) == len(FAULTS)
    for fault in FAULTS.values():
        where = fault.reference.removeprefix("pipeconform.reference_impl.faults.")
        assert any(f"`{where}`" in row and f"| {fault.requirement} |" in row for row in rows), fault.name


def test_the_committed_page_is_up_to_date(pytestconfig: pytest.Config):
    committed = (pytestconfig.rootpath / "docs/faults.md").read_text("utf-8")

    assert committed == faults_page(), "run 'make standard' and commit docs/faults.md"
