"""Engines that make their groups of the whole world."""

import pytest
import torch

from pipeconform.adapter import Ranks
from pipeconform.adapters.whole_world import require_whole_world
from pipeconform.errors import Unsupported


def _ranks(*, members, size, replicas=1):
    return Ranks(
        device=torch.device("cpu"),
        rank=0,
        world_size=size,
        pipeline_ranks=members,
        pipeline_rank=0,
        pipeline_group=None,
        num_replicas=replicas,
    )


@pytest.mark.parametrize(("size", "replicas"), [(2, 1), (4, 2)])
def test_a_pipeline_and_its_replicas_may_be_the_whole_world(size, replicas):
    require_whole_world(_ranks(members=(0, 1), size=size, replicas=replicas))


def test_a_rank_outside_is_refused():
    with pytest.raises(Unsupported, match="pipelines on 2 ranks of 3"):
        require_whole_world(_ranks(members=(0, 1), size=3))
