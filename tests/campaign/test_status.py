"""What controls of other requirements showed is part of their cells, and is expected where an entry covers it."""

import datetime

import msgspec
import pytest

from pipeconform.campaign.status import blocked_by, status_of, with_causes
from pipeconform.gate.expectations import Expectation
from pipeconform.report.result import Control
from pipeconform.report.words import reservation
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


OWN, FLAKY, HUNG = {}, {"confirmed": False}, {"status": "hung", "signature": "hang"}
BLOCKED = {"control": Control(digest="d", requirement="TRN-3", status="failed", signature="scale")}
PASSED = {"control": Control(digest="d")}
"""A control that shows nothing, so that the violation stands."""


@pytest.mark.parametrize(
    ("shown", "compared", "status"),
    [
        ([], 1, "passed"),
        ([], 0, "nothing_compared"),
        ([OWN], 0, "failed"),
        ([PASSED], 1, "failed"),
        ([OWN, HUNG], 1, "hung"),
        ([FLAKY], 1, "flaky"),
        ([FLAKY, OWN], 1, "failed"),
        ([BLOCKED], 1, "blocked"),
        ([BLOCKED, BLOCKED], 0, "blocked"),
        ([BLOCKED, OWN], 1, "failed"),
        ([BLOCKED, FLAKY], 1, "blocked"),  # what is confirmed is another's business
        ([BLOCKED | FLAKY, FLAKY], 1, "flaky"),
        ([BLOCKED | HUNG, OWN], 1, "failed"),
    ],
)
def test_a_cell_has_the_status_of_its_worst_confirmed_violation_of_its_own(make, shown, compared, status):
    violations = tuple(make.violation("FWD-7", "GPipe", **fields) for fields in shown)

    assert status_of(violations, compared=compared) == status


def test_a_blocked_cell_names_each_requirement_that_blocks_it_once(make):
    others = [make.changed(BLOCKED["control"], requirement=name) for name in ("TRN-3", "TRN-1", "TRN-3")]
    shown = [make.violation("FWD-7", "GPipe", control=one) for one in (*others, PASSED["control"])]

    assert blocked_by(shown).startswith("blocked by TRN-3, TRN-1, which the same case violates")


def test_every_violation_of_a_cell_may_have_a_cause_elsewhere(make, blocked):
    """What its owner was not judged for is not added to it."""
    control = blocked.violations[0].control
    several = [
        make.violation("FWD-7", "GPipe", signature="first", control=control),
        make.violation("FWD-7", "GPipe", signature="second"),
        make.violation(
            "FWD-7", "GPipe", signature="third", control=make.changed(control, requirement="TRN-1")
        ),
        make.violation(
            "FWD-7", "GPipe", signature="last", control=make.changed(control, requirement="FWD-1", case=None)
        ),
    ]
    skipped = make.cell("TRN-1", "GPipe", status="skipped", judgements=0)
    cells = [
        make.cell("FWD-7", "GPipe", *several),
        make.cell("TRN-3", "GPipe"),
        make.cell("TRN-3", "1F1B"),
        skipped,
        make.cell("FWD-1", "GPipe"),
    ]
    told = with_causes(cells)

    assert [len(cell.violations) for cell in told] == [4, 1, 0, 0, 1]
    assert told[3] is skipped
    cause = told[4].violations[0]
    assert cause.case == several[3].case  # the control's own, or the violation's
    assert (cause.found_by, cause.id.partition(":")[0], cause.minimal) == (several[3].id, "FWD-1", False)
    assert cause.replay.endswith(f"{cause.id} --impl torch")


def test_a_cause_that_two_violations_have_is_added_once(make, blocked):
    twice = make.changed(blocked, violations=blocked.violations * 2)
    told = with_causes([twice, make.cell("TRN-3", "GPipe")])

    assert len(told[1].violations) == 1


def test_of_several_controls_the_simplest_one_is_shown_and_all_are_counted(make, blocked):
    (first,) = blocked.violations
    small = first.case if first.control.case is None else first.control.case
    large = msgspec.structs.replace(small, program=(*small.program, *small.program), seed=small.seed + 1)
    others = [
        make.violation(
            "FWD-7", "GPipe", signature=f"{n}", case=large, control=make.changed(first.control, case=None)
        )
        for n in range(2)
    ]
    cell = make.changed(blocked, violations=(*others, first))

    (cause,) = with_causes([cell, make.cell("TRN-3", "GPipe")])[1].violations

    assert cause.case == small
    assert cause.found_by == first.id
    assert cause.occurrences == 2  # distinct cases
    assert reservation(cause).startswith("not minimal: a control of another requirement's case")
