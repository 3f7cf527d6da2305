"""Split backward raises "Can't detach views in-place" for sequence-parallel stages that parallelize_module made.

What: a stage between the first and the last whose blocks work on parts of the sequence, and whose output
  PrepareModuleInputOutput (or PrepareModuleOutput) gathers, cannot be trained with a schedule that splits the backward.
  The module itself returns no view.
Where: torch 2.13.0, distributed/pipelining/_backward.py, stage_backward_input, line 265 (t.detach_()), and
  distributed/tensor/parallel/style.py, PrepareModuleOutput, which ends in DTensor.to_local().
Why: to_local() returns a view, and outputs are detached in place to free the graph. This is what finding 6 is about;
  here no user wrote the view, and the stage's own module cannot avoid it.
Requirement: DPC-7.
Schedules: InterleavedZeroBubble, ZBVZeroBubble, DualPipeV.
Known: https://github.com/pytorch/pytorch/issues/142229 (open; about views that a module returns).
Possible fix: skip views in stage_backward_input, as backward_one_chunk does.
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInputOutput,
    RowwiseParallel,
    parallelize_module,
)

PARTS = 2  # processes: one pipeline rank with three stages, each cut in two
STAGES = 3
M = 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return (x + self.down(torch.relu(self.up(x)))) * 1.0  # no view


def cut(module, mesh):
    parallelize_module(
        module,
        mesh,
        {"up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1))},
    )
    edges = PrepareModuleInputOutput(
        input_layouts=Replicate(),
        desired_input_layouts=Shard(1),
        use_local_input=True,
        output_layouts=Shard(1),
        desired_output_layouts=Replicate(),
    )
    return parallelize_module(module, mesh, edges)


def run(rank, name):
    torch.manual_seed(0)
    mesh = DeviceMesh("cpu", list(range(PARTS)), mesh_dim_names=("tp",))
    alone = [dist.new_group([r]) for r in range(PARTS)][rank]
    modules = [cut(Block(), mesh) for _ in range(STAGES)]
    stages = [PipelineStage(m, s, STAGES, torch.device("cpu"), group=alone) for s, m in enumerate(modules)]
    schedule = get_schedule_class(name)(stages, M, loss_fn=nn.functional.mse_loss)
    x = torch.randn(2 * M, 4, 4)
    try:
        schedule.step(x, target=x)
    except RuntimeError as error:
        cause = str(error.__cause__ or error).partition(".")[0]
        return f"{name}: rank {rank}: expected: no error; actual: {cause}"
    return f"{name}: rank {rank}: no error"


def worker(rank, folder, name):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous-{name}",
        rank=rank,
        world_size=PARTS,
        timeout=timedelta(seconds=60),
    )
    Path(folder, f"{name}-{rank}.txt").write_text(f"{run(rank, name)}\n")
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("Interleaved1F1B", "InterleavedZeroBubble"):
            args = [(rank, folder, name) for rank in range(PARTS)]
            processes = [mp.get_context("spawn").Process(target=worker, args=a) for a in args]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=120)
                process.kill()
            for rank in range(PARTS):
                path = Path(folder, f"{name}-{rank}.txt")
                if not path.exists():
                    sys.exit(f"inconclusive: a rank gave no result ({path.name})")
                print(path.read_text(), end="")


if __name__ == "__main__":
    main()
