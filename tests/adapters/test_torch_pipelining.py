"""What torch's adapter claims of each schedule is what that schedule takes."""

import inspect

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from pipeconform.adapter import Feature
from pipeconform.adapters.torch_pipelining import TorchPipelining
from pipeconform.adapters.torch_release import CLASSES
from pipeconform.adapters.torch_tables import declared_table, load_table, written_table

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


@pytest.mark.parametrize("feature", [Feature.TABLES, Feature.WRITTEN_TABLES])
def test_schedules_of_the_runtime_that_loads_tables_take_and_write_tables(feature):
    taken = {one.name for one in CLAIMED.schedules if feature in CLAIMED.under(one).features}

    assert taken == {
        "Interleaved1F1B",
        "LoopedBFS",
        "InterleavedZeroBubble",
        "ZBVZeroBubble",
        "DualPipeV",
    }


def test_a_table_of_the_users_own_is_what_the_runtime_then_declares():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        stages = [PipelineStage(nn.Linear(1, 1), s, 2, torch.device("cpu")) for s in (0, 1)]
        runtime = schedules._PipelineScheduleRuntime(stages, 2, loss_fn=nn.functional.mse_loss)
        table = "0F0,1F0,1I0,0F1,0B0,1F1,1B1,1W0,0I1,0W1\r\n"

        load_table(runtime, table)

        assert declared_table(runtime) == table

        written = written_table(runtime, form="compute_comms")
        again = schedules._PipelineScheduleRuntime(stages, 2, loss_fn=nn.functional.mse_loss)
        load_table(again, written, form="compute_comms")

        assert "1UNSHARD" in written
        assert again.pipeline_order_with_comms == runtime.pipeline_order_with_comms
    finally:
        dist.destroy_process_group()
