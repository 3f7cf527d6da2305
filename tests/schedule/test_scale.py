"""The table chapter at the size of clusters, without a rank: SCH-1 to 5 and 7 for every family."""

import itertools

import pytest

from pipeconform.schedule import families, generate, lower, simulate, verify, verify_named
from pipeconform.schedule.families import Size

SIZES = [
    Size(p, v, m)
    for (p, m), v in itertools.product([(1024, 16), (256, 256), (256, 512)], (1, 2))  # some need m ≥ p or 2p
]


@pytest.mark.slow
@pytest.mark.parametrize("item", families(), ids=lambda item: item.name)
def test_every_family_keeps_its_promises_on_hundreds_of_ranks(item):
    p, v, m = next(size for size in SIZES if item.refusal(size) is None)

    table = lower(item.generate(num_ranks=p, stages_per_rank=v, num_microbatches=m))

    assert verify_named(table, name=item.name) == ()


def test_a_thousand_ranks_with_four_stages_each_are_verified_and_timed():
    table = lower(generate("interleaved_one_f_one_b", num_ranks=1024, stages_per_rank=4, num_microbatches=16))

    assert verify(table) == ()
    assert simulate(table).busy.tolist() == [4 * 16 * 3.0] * 1024
    assert table.num_bytes <= 64 * table.num_entries
