"""Two workers of a distributed run: what one executed the other does not, and both count what they did."""

from pipeconform.campaign.campaign import Campaign
from pipeconform.campaign.cell import judge_cell
from pipeconform.campaign.options import Options
from pipeconform.campaign.setup import campaign_of
from pipeconform.spec import requirement


def _judged(campaign: Campaign, asked: str) -> None:
    cell = judge_cell(campaign, requirement(asked), "GPipe")
    assert cell.status == "passed", cell.reason


def test_a_case_that_another_worker_executed_and_this_one_repeats_is_counted_with_its_ranks(tmp_path):
    """LIF-5 repeats cases; without this, a certification in several processes lost its result at the end."""
    options = Options(
        implementation="reference",
        profile="smoke",
        examples=2,
        ranks=(1, 2),
        schedules=("GPipe",),
        share=tmp_path,
    )
    with campaign_of(options) as first:
        _judged(first, "FWD-1")
    with campaign_of(options) as second:
        _judged(second, "FWD-1")
        assert second.executed == {}
        _judged(second, "LIF-5")

    assert first.executed.keys() & second.executed.keys()
    assert second.num_ranks.keys() == second.executed.keys()
