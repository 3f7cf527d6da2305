"""A cell is ok where something was compared; what is not claimed and not shown is no pass."""

from pathlib import Path

import pytest

from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import campaign_of
from pipeconform.spec import requirement
from tests.facts import tells

SILENT = f"{Path(__file__).with_name('silent_engines.py')}:"


def judged(implementation, identifier, schedule="GPipe", ranks=(1, 2)):
    options = Options(implementation=implementation, profile="smoke", ranks=ranks)
    with campaign_of(options) as campaign:
        return judge_cell(campaign, requirement(identifier), schedule)


@pytest.mark.parametrize("schedule", ["GPipe", pytest.param("ForwardOnly", marks=pytest.mark.slow)])
def test_outputs_that_are_returned_are_judged_although_they_are_not_claimed(schedule):
    cell = judged(SILENT + "Triples", "FWD-1", schedule)

    assert cell.status == "failed"
    assert {violation.signature for violation in cell.violations} == {"output value"}
    assert cell.unclaimed == ("outputs",)


@pytest.mark.slow
def test_losses_stand_for_outputs_that_are_not_returned():
    right, wrong = judged(SILENT + "LossOnly", "FWD-1"), judged(SILENT + "TripledLoss", "FWD-1")

    assert (right.status, right.unclaimed) == ("passed", ())
    assert right.compared > 0
    assert {violation.signature for violation in wrong.violations} == {"loss value"}


def test_an_engine_that_returns_nothing_has_nothing_compared():
    cell = judged(SILENT + "ReturnsNothing", "FWD-1", "ForwardOnly")

    assert (cell.status, cell.violations, cell.compared) == ("nothing_compared", (), 0)
    assert cell.judgements > 0
    assert tells(cell.reason, "nothing compared", "neither an output nor a loss is returned")


def test_the_default_group_cannot_be_told_apart_without_a_bystander():
    alone, among = judged("reference", "COM-2"), judged("reference", "COM-2", ranks=(1, 3))

    assert (alone.status, alone.compared) == ("nothing_compared", 0)
    assert tells(
        alone.reason, "nothing compared", "no case had a bystander", "the claim sub_groups", "--ranks of 3"
    )
    assert among.status == "passed"
    assert among.compared > 0


@pytest.mark.slow
def test_a_requirement_says_which_of_its_subjects_are_not_claimed():
    assert judged("reference", "TRN-8").without == ()
    assert judged("torch", "TRN-8").without == ("weights tied across stages",)
