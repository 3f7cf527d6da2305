"""Hanayo's wave is what its source makes of Chimera, and keeps within the bubble quoted for it."""

import pytest

from pipeconform.errors import UsageError
from pipeconform.schedule import Costs, generate, simulate


def test_a_wave_written_by_hand():
    table = generate("hanayo", num_ranks=2, stages_per_rank=2, num_microbatches=2)

    assert [" ".join(map(str, a)) for a in table] == [
        "0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1",
        "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1",
    ]


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_one_wave_is_chimera_with_its_halves_swapped(p):
    """Rank r runs in the order of rank r of Chimera on 2p ranks, whose two chains become one."""
    wave = generate("hanayo", num_ranks=p, stages_per_rank=2, num_microbatches=3 * p)
    chimera = generate("chimera", num_ranks=2 * p, stages_per_rank=2, num_microbatches=6 * p)

    for rank in range(p):
        assert wave[rank] == tuple(a._replace(stage=a.stage % (2 * p)) for a in chimera[rank])


@pytest.mark.parametrize("waves", [1, 2, 3, 4])
@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_the_bubble_is_within_the_share_quoted_for_the_paper(p, waves):
    """SCH-4, at the paper's cost B = 2F and one unit of p microbatches."""
    table = generate("hanayo", num_ranks=p, stages_per_rank=2 * waves, num_microbatches=p)

    simulation = simulate(table, costs=Costs(forward=1, input_grad=1, weight_grad=1))

    share = float(simulation.makespan_bubble.max()) / simulation.makespan
    assert share == pytest.approx((2 * p - 2) / (3 * p * waves + 2 * p - 2))
    assert share <= (2 * p - 2) / (3 * p * waves + p - 1)


@pytest.mark.parametrize(
    ("v", "m", "reason"), [(1, 4, "v must be even"), (3, 4, "v must be even"), (2, 3, "p must divide m")]
)
def test_sizes_without_a_wave_are_refused(v, m, reason):
    """SCH-6"""
    with pytest.raises(UsageError, match=reason):
        generate("hanayo", num_ranks=2, stages_per_rank=v, num_microbatches=m)
