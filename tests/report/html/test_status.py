"""A cell leads to the violation from which it has its status, and both are called by the same word."""

import itertools

from pipeconform.campaign.status import status_of
from pipeconform.report.html.status import (
    EXPECTED,
    cell_view,
    status_view,
    telling,
    violation_views,
    worst_first,
)
from pipeconform.report.result import Control

CONTROL = Control(digest="d", requirement="TRN-1", status="failed", signature="gradient value")
KINDS = {
    "failed": {},
    "hung": {"status": "hung"},
    "crashed": {"status": "crashed"},
    "error": {"status": "error"},
    "flaky": {"confirmed": False},
    "flaky and blocked": {"confirmed": False, "control": CONTROL},
    "blocked": {"control": CONTROL},
    "expected": {"expected": "known.toml:1"},
    "expected crash": {"status": "crashed", "expected": "known.toml:1"},
}


def test_the_telling_violation_has_the_status_of_its_cell(make):
    for kinds in itertools.product(KINDS, repeat=2):
        both = tuple(
            make.violation("FWD-1", "GPipe", id=f"{k}", **({"status": "failed"} | KINDS[kind]))
            for k, kind in enumerate(kinds)
        )
        cell = make.cell("FWD-1", "GPipe", *both, status=status_of(both, compared=1))

        assert cell_view(cell) in violation_views(telling(cell)), kinds


def test_a_cell_without_violations_leads_nowhere(make):
    assert telling(make.cell("FWD-1", "GPipe")) is None


def test_views_are_sorted_by_severity_each_once():
    failed, hung = status_view("failed"), status_view("hung")

    assert worst_first([EXPECTED, failed, hung, failed]) == (hung, failed, EXPECTED)
