"""What controls of other requirements showed is part of their cells, and is expected where an entry covers it."""

import datetime

import msgspec
import pytest

from pipeconform.campaign.status import with_causes
from pipeconform.gate.expectations import Expectation
from pipeconform.report.result import Control
from tests.report.conftest import make

__all__ = ["make"]

ENTRY = Expectation(
    requirement="TRN-3",
    status="failed",
    signature="scale",
    reason="not divided",
    issue="https://example.org/7",
    owner="us",
    expires=datetime.date(2026, 12, 31),
    device="cuda",
    file="expectations.toml",
    line=7,
)


@pytest.fixture
def blocked(make):
    """A cell whose violation is the business of TRN-3, which shows it with three ranks."""
    case = make.case(p=3)
    control = Control(
        requirement="TRN-3",
        words="with contiguous tensors",
        digest=case.digest,
        case=case,
        status="failed",
        signature="scale",
        message="twice",
    )
    return make.cell("FWD-7", "GPipe", make.violation("FWD-7", "GPipe", control=control))


@pytest.mark.parametrize(
    ("device", "label"), [("cuda", "expectations.toml:7"), ("cpu", "")], ids=["covered", "on another device"]
)
def test_what_a_control_showed_is_expected_where_an_entry_covers_it(make, blocked, device, label):
    fewer_ranks = msgspec.structs.replace(ENTRY, p=(2,), line=3)
    met = make.cell("TRN-3", "GPipe")

    told = with_causes([met, blocked], expectations=[fewer_ranks, ENTRY], device=device, torch="2.13.0")
    (violation,) = told[0].violations
    assert (violation.signature, violation.case, violation.expected) == ("scale", make.case(p=3), label)


def test_what_a_cell_shows_itself_is_not_added(make, blocked):
    shown = make.cell("TRN-3", "GPipe", make.violation("TRN-3", "GPipe", signature="scale"))

    assert with_causes([shown, blocked]) == (shown, blocked)


def test_what_the_first_cell_s_control_showed_is_added_wherever_its_owner_stands(make, blocked):
    for cells in ([blocked, make.cell("TRN-3", "GPipe")], [make.cell("TRN-3", "GPipe"), blocked]):
        told = {cell.requirement: cell for cell in with_causes(cells)}
        assert (told["TRN-3"].status, len(told["TRN-3"].violations)) == ("failed", 1)
        assert told["FWD-7"] is blocked
