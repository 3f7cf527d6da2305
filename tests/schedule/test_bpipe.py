"""BPipe's order is 1F1B's; what it promises about memory follows from what 1F1B's ranks hold."""

import itertools

import pytest

from pipeconform.schedule import generate, simulate
from pipeconform.schedule.families.bpipe import limit, partner, stored
from pipeconform.schedule.families.family import Size

SIZES = [Size(p, 1, m) for p, m in itertools.product((1, 2, 3, 4, 5, 8, 16), (1, 2, 3, 4, 8, 16, 40))]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_order_is_that_of_1f1b(size):
    p, _, m = size

    assert generate("bpipe", num_ranks=p, num_microbatches=m) == generate(
        "one_f_one_b", num_ranks=p, num_microbatches=m
    )


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_pair_stores_together_what_its_ranks_hold_and_each_at_most_the_limit(size):
    """SCH-3: nothing is lost or invented by parking it, and the published bound ⌈(p+2)/2⌉ is kept."""
    p, _, m = size
    held = simulate(generate("bpipe", num_ranks=p, num_microbatches=m)).peak_in_flight_weight.tolist()

    for rank in range(p // 2):
        other = partner(rank, p)
        assert held[rank] + held[other] == stored(rank, size) + stored(other, size) <= p + 1
    assert max(stored(rank, size) for rank in range(p)) <= limit(p)


def test_the_limit_is_reached_and_below_what_the_first_rank_of_1f1b_holds():
    size = Size(8, 1, 16)

    assert [stored(rank, size) for rank in range(8)] == [5, 5, 5, 5, 4, 4, 4, 4]
    assert generate("bpipe", num_ranks=8, num_microbatches=16)[0][:8] == tuple(
        action for action in generate("gpipe", num_ranks=8, num_microbatches=16)[0][:8]
    )
