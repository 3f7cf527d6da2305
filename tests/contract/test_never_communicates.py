"""An implementation that pipelines nothing is seen to be none, whatever it claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import campaign_of
from pipeconform.spec import requirement

FAKE = Path(__file__).parent / "engines" / "never_communicates.py"


def _judged(name: str, *asked: str, schedule: str = "GPipe") -> dict[str, str]:
    options = Options(implementation=f"{FAKE}:{name}", profile="smoke", examples=3, ranks=(2, 2))
    with campaign_of(options) as campaign:
        cells = [judge_cell(campaign, requirement(one), schedule) for one in asked]
    return {cell.requirement: cell.status for cell in cells}


@pytest.mark.parametrize(("asked", "status"), [("FWD-1", "failed"), ("TRN-1", "blocked")])
def test_what_a_rank_computes_of_another_rank_s_stages_is_wrong(asked, status):
    """The values of foreign stages, inputs and targets are others, although all are claimed to be consumed.

    Wrong outputs explain wrong gradients.
    """
    assert _judged("NeverCommunicates", asked) == {asked: status}


def test_nothing_crosses():
    assert _judged("NeverCommunicates", "COM-7") == {"COM-7": "failed"}


def test_a_stage_of_another_rank_that_runs_here_is_seen():
    """Its builder gives it a recorder like any other."""
    assert _judged("RunsForeignStages", "SCH-7") == {"SCH-7": "failed"}
