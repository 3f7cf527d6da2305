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
        ("defer_pp_recv", Feature.LATE_RECEIVES),
    ],
)
def test_a_schedule_without_the_parameter_lacks_the_feature(claim, setting, feature):
    taken = setting in inspect.signature(CLASSES[claim.name]).parameters

    assert (feature in CLAIMED.under(claim).features) == taken


def test_schedules_of_the_runtime_that_loads_tables_take_a_table_of_the_users_own():
    taken = {one.name for one in CLAIMED.schedules if Feature.TABLES in CLAIMED.under(one).features}

    assert taken == {
        "Interleaved1F1B",
        "LoopedBFS",
        "InterleavedZeroBubble",
        "ZBVZeroBubble",
        "DualPipeV",
    }


def test_a_table_is_loaded_as_it_is_and_completed_with_messages():
    store = dist.HashStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=2)
    try:
        stages = [PipelineStage(nn.Linear(1, 1), s, 4, torch.device("cpu")) for s in (0, 2)]
        runtime = schedules._PipelineScheduleRuntime(stages, 1, loss_fn=nn.functional.mse_loss)
        table = "0F0,2F0,2I0,0B0,2W0\r\n1F0,3F0,3B0,1B0\r\n"
        load_table(runtime, table)

        assert declared_table(runtime) == table
        assert [str(one) for one in runtime.pipeline_order_with_comms[0]] == WITH_MESSAGES
    finally:
        dist.destroy_process_group()
