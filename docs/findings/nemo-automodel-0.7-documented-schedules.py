"""Of the seven schedules that PipelineConfig documents, five are refused as unknown.

What: the documentation of PipelineConfig.pp_schedule lists "1f1b", "gpipe", "interleaved_1f1b", "looped_bfs", "dfs",
  "v_schedule" and "zero_bubble" as the supported values. AutoPipeline.build() raises ValueError for all but the first
  two: names are looked up by torch, which has Interleaved1F1B, LoopedBFS, InterleavedZeroBubble and ZBVZeroBubble.
Where: nemo-automodel 0.7.0, components/distributed/pipelining/config.py, PipelineConfig; functional.py,
  split_model_into_stages and build_pipeline_schedule, which call torch's get_schedule_class.
Why: the documented names are not torch's, and nothing translates them.
Requirement: none.
Schedules: those named.
Known: no thread about this is known.
Possible fix: document torch's names (they are compared without case).
"""

import logging
import os
import re
import warnings

os.environ.update(GLOO_SOCKET_IFNAME="lo")

import torch
import torch.distributed as dist
from nemo_automodel.components.distributed.pipelining import AutoPipeline, config
from nemo_automodel.components.distributed.pipelining.functional import get_schedule_class
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.testing._internal.distributed.fake_pg import FakeStore


class Layers(torch.nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(count))


class Model(torch.nn.Module):
    _pp_keep_self_forward = True
    config = None

    def __init__(self, count):
        super().__init__()
        self.model = Layers(count)


def outcome(mesh, schedule):
    """What building a pipeline under this schedule comes to on rank 0 of two."""
    count = 2 if schedule in ("1f1b", "gpipe") else 4
    try:
        single = issubclass(get_schedule_class(schedule), PipelineScheduleSingle)
        AutoPipeline(
            mesh,
            pp_schedule=schedule,
            pp_microbatch_size=1,
            pp_batch_size=4,
            module_fqns_per_model_part=[[f"model.layers.{s}"] for s in range(count)],
            device=torch.device("cpu"),
        ).build(Model(count), loss_fn=torch.nn.functional.mse_loss)
    except ValueError as error:
        return f"ValueError: {str(error).partition('.')[0]}"
    return f"built, {'one stage' if single else 'several stages'} per rank"


def main():
    warnings.simplefilter("ignore")
    logging.getLogger("nemo_automodel").setLevel(logging.ERROR)
    # nothing is sent while a pipeline is built
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    documented = config.PipelineConfig.__doc__.partition("Supported values:")[2].partition("Defaults")[0]
    for schedule in re.findall(r'"(\w+)"', documented):
        print(f"{schedule}: {outcome(mesh, schedule)}")
    for schedule in ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"):
        print(f"torch's {schedule}: {outcome(mesh, schedule)}")


if __name__ == "__main__":
    main()
