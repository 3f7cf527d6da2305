"""What torch's adapter claims of each schedule is what that schedule takes."""

import inspect

import pytest

from pipeconform.adapter import Feature
from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.adapters.torch_release import CLASSES

CLAIMED = TorchPipelining().describe().capabilities


@pytest.mark.parametrize("claim", CLAIMED.schedules, ids=lambda claim: claim.name)
@pytest.mark.parametrize(
    ("setting", "feature"),
    [
        ("args_chunk_spec", Feature.BATCH_DIM),
        ("kwargs_chunk_spec", Feature.SPLIT_DIMS),
        ("output_merge_spec", Feature.MERGE_DIMS),
        ("output_merge_spec", Feature.CUSTOM_MERGES),
    ],
)
def test_a_schedule_without_the_parameter_lacks_the_feature(claim, setting, feature):
    taken = setting in inspect.signature(CLASSES[claim.name]).parameters

    assert (feature in CLAIMED.under(claim).features) == taken
