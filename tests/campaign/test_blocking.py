"""A violation is followed to the requirement whose business it is, by executing its controls on real processes."""

from pathlib import Path

import msgspec
import pytest

from pipeconform.campaign.blocking import explained
from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import campaign_of
from pipeconform.campaign.status import blocked_by, status_of, with_causes
from pipeconform.campaign.trial import faults
from pipeconform.judge.finding import Finding
from pipeconform.judge.outcome import Outcome, Status
from pipeconform.spec import requirement

ENGINES = f"{Path(__file__).with_name('blocked_engines.py')}:"


def judged(engine, *identifiers, schedule="1F1B", ranks=(1, 2)):
    named = ENGINES + engine if engine in ("Undivided", "DeclaresNonsense") else engine
    options = Options(implementation=named, profile="smoke", ranks=ranks)
    with campaign_of(options) as campaign:
        return [judge_cell(campaign, requirement(name), schedule) for name in identifiers]


@pytest.fixture(scope="module")
def undivided():
    """An engine that does not divide gradients by m, judged by what sees that."""
    return judged("Undivided", "TRN-3", "TRN-1", "FWD-7", "TRN-7", "FWD-1")


def test_the_requirement_that_tells_what_is_wrong_is_accused(undivided):
    scale, gradients, *_ = undivided

    assert scale.status == "failed"
    assert "times the reference's (m = " in scale.violations[0].message
    assert scale.violations[0].blocked_by == ""
    assert gradients.status == "blocked"
    assert {one.blocked_by for one in gradients.violations} == {"TRN-3"}
    assert gradients.reason == blocked_by(gradients.violations)


def test_a_requirement_is_blocked_if_its_control_shows_the_same(undivided):
    """Memory layouts have nothing to do with it, and the case without them shows that."""
    layouts = undivided[2]

    assert layouts.status == "blocked"
    for violation in layouts.violations:
        control = violation.control
        assert control.requirement == "TRN-3"
        assert control.words.startswith("with ")
        assert control.signature == "scale"
        assert control.case.digest == control.digest != violation.digest


def test_what_is_right_stays_met(undivided):
    assert undivided[4].status == "passed"


def test_what_only_the_subject_shows_is_accused_and_the_control_passes():
    """The control is the same case without the layouts, and was executed."""
    (cell,) = judged(faults()["scrambled"].reference, "FWD-7")

    assert cell.status == "failed"
    for violation in cell.violations:
        assert violation.blocked_by == ""
        assert violation.control.status == "passed"
        assert violation.control.words
        assert violation.control.digest != violation.digest


def test_an_evaluation_that_ends_in_an_error_is_evaluations_business():
    """In torch 2.13, eval() raises under V schedules; what is asked after an evaluation cannot be judged there."""
    evaluation, order, guarded = judged(
        "torch", "SCH-9", "LIF-1", "LIF-2", schedule="ZBVZeroBubble", ranks=(1, 1)
    )

    assert evaluation.status == "error"
    assert evaluation.violations[0].blocked_by == ""
    assert (order.status, guarded.status) == ("blocked", "blocked")
    assert {v.blocked_by for cell in (order, guarded) for v in cell.violations} == {"SCH-9"}


def test_an_order_that_is_not_declared_blocks_what_is_computed_from_the_declaration():
    declared, bubble, deadlock = judged("DeclaresNonsense", "SCH-8", "SCH-4", "SCH-5", ranks=(2, 2))

    assert declared.status == "failed"
    assert (bubble.status, deadlock.status) == ("blocked", "blocked")
    assert {v.blocked_by for cell in (bubble, deadlock) for v in cell.violations} == {"SCH-8"}


def test_a_cell_is_given_what_a_control_of_another_showed(undivided):
    """Its own cases may be too few to show it."""
    scale, _, layouts, *_ = undivided
    unseen = msgspec.structs.replace(scale, status="passed", violations=())

    told = {cell.requirement: cell for cell in with_causes([unseen, layouts])}["TRN-3"]

    (violation,) = told.violations
    effect = layouts.violations[0]
    assert told.status == "failed" == status_of(told.violations, compared=told.compared)
    assert (violation.signature, violation.found_by) == ("scale", effect.id)
    assert violation.case == effect.control.case
    assert violation.id.startswith("TRN-3:1F1B:default:")
    assert violation.id in violation.replay


def test_a_cell_that_shows_it_already_is_left_as_it_is(undivided):
    scale, _, layouts, *_ = undivided

    assert with_causes([scale, layouts]) == (scale, layouts)


def test_a_cell_that_was_not_judged_is_left_as_it_is(undivided):
    scale, _, layouts, *_ = undivided
    skipped = msgspec.structs.replace(scale, status="skipped", violations=(), judgements=0, compared=0)

    assert with_causes([skipped, layouts]) == (skipped, layouts)


def test_a_case_that_shows_its_violation_by_chance_is_executed_until_it_does():
    """An execution that shows nothing says nothing about whose business the violation is."""
    shown = Outcome(Status.FAILED, Finding(kind="gradient value", message=""))
    executions = []

    def ask(case, rows, *, anew=False):
        executions.append([row.id for row in rows])
        return {"TRN-1": [shown], "COM-1": [shown]} if len(executions) == 3 else {}

    options = Options(implementation="reference", profile="smoke", ranks=(1, 2))
    with campaign_of(options) as campaign:
        asked = campaign.ask(requirement("COM-1"), "GPipe", "default")
        case = next(iter(asked.corpora[0].drawn()))
        found = explained(asked, case, shown, ask=ask)

    assert found.control.requirement == "TRN-1"
    assert len(executions) >= 3
    assert all(rows[0] == "COM-1" for rows in executions[:3])


def test_what_only_a_case_with_other_ranks_shows_is_the_business_of_the_given_group():
    """The engine takes the number of a process for a rank of the group, which the pipeline alone does not show."""
    reference = faults()["process-taken-for-group-rank"].reference
    (order,) = judged(reference, "FWD-2", ranks=(1, 4))

    assert order.status == "blocked"
    assert {one.blocked_by for one in order.violations} == {"COM-2"}
