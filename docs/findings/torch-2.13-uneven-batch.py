"""A batch that m does not divide returns extra rows of uninitialised memory.

What: 5 rows in 4 microbatches (2, 1, 1, 1) come back as 8 rows; the surplus was never written. The script
  asks torch to fill uninitialised memory with NaN, so that the rows can be seen.
Where: torch 2.13.0, distributed/pipelining/stage.py, _setup_forward_recv_info, line 2270: every microbatch's
  receive buffer gets the first microbatch's shape; microbatch.py, _split_tensor, line 239, splits unevenly.
Why: gloo receives a short message into a long buffer without a word, and nothing compares shapes.
Requirement: FWD-2, FWD-24.
Schedules: _ScheduleForwardOnly (private) and any schedule that runs without a loss function or by eval()
  with a loss that accepts the shapes; two ranks or more. Training steps raise in the loss or the backward.
Known: https://github.com/pytorch/pytorch/issues/126600 (closed: uneven microbatches are not supported), yet
  nothing refuses them.
Possible fix: raise in _split_tensor (or step()) when sizes differ.
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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import _ScheduleForwardOnly

WORLD = 2
M = 4


def run(rank):
    torch.use_deterministic_algorithms(True)
    lines = []
    for cls in (_ScheduleForwardOnly, ScheduleGPipe, Schedule1F1B):
        torch.manual_seed(0)
        stage = PipelineStage(nn.Identity(), rank, WORLD, torch.device("cpu"))
        schedule = cls(stage, M)
        x = torch.arange(5.0).reshape(5, 1)
        with torch.no_grad():
            output = schedule.step(*(() if rank else (x,)))
        if rank:
            lines.append(f"{cls.__name__}: expected {x.flatten().tolist()}")
            lines.append(f"{cls.__name__}: actual   {output.flatten().tolist()}")
    return lines


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
