"""Sizes at the edges of a claim."""

import pytest

from pipeconform.adapter import MicrobatchRule, ScheduleClaim
from pipeconform.case.draw.subjects.edge import edge_sizes


def test_every_kind_of_edge_is_there():
    claim = ScheduleClaim(name="any", stages_per_rank=(1, 4))
    single, few, alone, many = edge_sizes(claim, min_ranks=1, max_ranks=4)

    assert all(m == 1 for _, _, m in single)
    assert all(1 < m < p for p, _, m in few)
    assert all(p == 1 for p, _, _ in alone)
    assert {v for _, v, _ in many} == {4}
    assert all(p * v <= 8 for kind in (single, few, alone, many) for p, v, _ in kind)


@pytest.mark.parametrize("rule", list(MicrobatchRule))
def test_the_last_kind_lies_outside_of_the_claim(rule):
    claim = ScheduleClaim(name="some", microbatches=rule, min_microbatches_per_rank=2, ranks_even=True)
    *inside, outside = edge_sizes(claim, min_ranks=1, max_ranks=4)

    def taken(size):
        p, v, m = size
        return claim.takes(num_ranks=p, stages_per_rank=v, num_microbatches=m)

    assert all(taken(size) for kind in inside for size in kind)
    assert outside
    assert not any(taken(size) for size in outside)
    assert all(p % 2 == 0 for p, _, _ in outside)


def test_ranks_stay_within_what_is_asked_for_and_claimed():
    claim = ScheduleClaim(name="some", min_ranks=2, max_ranks=3)

    assert {p for kind in edge_sizes(claim, min_ranks=1, max_ranks=8) for p, _, _ in kind} == {2, 3}
    assert edge_sizes(claim, min_ranks=4, max_ranks=8) == []
