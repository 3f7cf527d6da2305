"""The order that Schedule1F1B declares for the last rank is not the one that it runs.

What: _get_pipeline_order() numbers the last rank's forwards 1 ... m instead of 0 ... m-1: microbatch 0 never
  runs, microbatch m does not exist, and every backward but the first comes before its own forward. What
  step() executes is right. On one rank that rank is the last, too.
Where: torch 2.13.0, distributed/pipelining/schedules.py, Schedule1F1B._get_pipeline_order, lines 1196 to 1212
  (forward_mb).
Why: forward_mb holds the last forward that was added, and begins at 0 although none was; the last rank has no
  warm-up forwards, so its first one becomes number 1.
Requirement: SCH-8.
Schedules: 1F1B.
Possible fix: begin with forward_mb = -1 (or count the next one and increment after appending).
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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WORLD = 2
M = 4


class Recorded(nn.Module):
    """A linear map that notes which microbatch it runs: every input is filled with its number."""

    def __init__(self, rank, seen):
        super().__init__()
        self.linear, self.rank, self.seen = nn.Linear(1, 1, bias=False), rank, seen
        nn.init.ones_(self.linear.weight)

    def forward(self, x):
        k = round(x[0, 0].item()) - 1
        y = self.linear(x)
        if y.requires_grad and 0 <= k < M:
            y.register_hook(lambda gradient: self.seen.append(f"{self.rank}B{k}"))
        self.seen.append(f"{self.rank}F{k}")
        return y


def run(rank):
    seen = []
    stage = PipelineStage(
        Recorded(rank, seen),
        rank,
        WORLD,
        torch.device("cpu"),
        input_args=torch.zeros(1, 1),
        output_args=torch.zeros(1, 1),
    )
    schedule = Schedule1F1B(stage, M, loss_fn=nn.functional.mse_loss)
    numbers = torch.arange(1.0, M + 1).reshape(M, 1)
    seen.clear()
    if rank == 0:
        schedule.step(numbers)
    else:
        schedule.step(target=torch.zeros(M, 1))
    order = schedule._get_pipeline_order()[rank]
    declared = [str(action) for action in order if action is not None and "REDUCE" not in str(action)]
    return [f"rank {rank}: expected: {' '.join(seen)}", f"        actual:   {' '.join(declared)}"]


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=20),
    )
    lines = run(rank)
    Path(folder, f"{rank}.txt").write_text("".join(f"{line}\n" for line in lines))
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=60)
            process.kill()
        for rank in range(WORLD):
            path = Path(folder, f"{rank}.txt")
            if not path.exists():
                sys.exit(f"inconclusive: a rank gave no result ({path.name})")
            print(path.read_text(), end="")


if __name__ == "__main__":
    main()
