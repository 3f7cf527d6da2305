"""What engines claim of torch's schedules."""

import pytest

from pipeconform.adapters.torch_schedules import SCHEDULES, driven


def test_an_engine_claims_the_schedules_that_it_names_on_several_ranks():
    claims = driven("GPipe", "LoopedBFS", "ZBVZeroBubble")

    assert [one.name for one in claims] == ["GPipe", "LoopedBFS", "ZBVZeroBubble"]
    assert [one.stages_per_rank for one in claims] == [(1,), (2, 3), (2,)]
    assert {one.min_ranks for one in claims} == {2}


def test_what_a_schedule_takes_is_the_same_in_every_engine():
    own = {one.name: one for one in SCHEDULES}

    for claim in driven(*own):
        torch = own[claim.name]
        assert (claim.family, claim.placement) == (torch.family, torch.placement)
        assert (claim.split_backward, claim.microbatches) == (torch.split_backward, torch.microbatches)


def test_torch_has_no_other_schedules():
    with pytest.raises(KeyError, match="Hanayo"):
        driven("Hanayo")
