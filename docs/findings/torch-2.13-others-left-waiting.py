"""An exception in a stage is raised on its own rank only: the others wait until the group's time-out.

What: in the second step the forward of stage 0 raises. Its rank gets the error from step(); the process lives on, with
  its connections open, as one does that catches the error to skip a batch. The rank of stage 1 is still waiting for
  its input when the group's time-out (here 5 s) has passed, and then raises "Timed out".
Where: torch 2.13.0, distributed/pipelining/schedules.py, step(): whatever a stage raises leaves the step where it
  stands; nothing is sent to the other ranks.
Why: the engine has no message that says that there will be none.
Requirement: ERR-14 (SHOULD).
Schedules: all; two ranks or more.
Known: -
Possible fix: catch the error, abort the group's pending operations on all ranks, and raise it again.
"""

import os
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

WORLD = 2
PATIENCE = 5


class Broken(nn.Linear):
    """A linear map that raises while `broken` is set."""

    broken = False

    def forward(self, x):
        if self.broken:
            raise RuntimeError("out of memory, say")
        return super().forward(x)


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=PATIENCE),
    )
    module = Broken(2, 2)
    stage = PipelineStage(module, rank, WORLD, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 1, loss_fn=lambda output, target: output.sum())
    x = torch.ones(1, 2)

    def once():
        schedule.step(target=x) if rank else schedule.step(x)

    once()
    module.broken = rank == 0
    begun = time.monotonic()
    try:
        once()
        said = "no error"
    except RuntimeError as error:
        told = "Timed out" if "imed out" in str(error) else str(error.__cause__ or error)
        said = f"{type(error).__name__}: {told[:60]}"
    waited = "" if time.monotonic() - begun < PATIENCE - 1 else " (after the group's time-out)"
    Path(folder, f"{rank}.txt").write_text(f"rank {rank}: {said}{waited}")
    while not all(Path(folder, f"{r}.txt").exists() for r in range(WORLD)):
        time.sleep(0.1)  # a closing socket would wake the other rank up
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(folder,), nprocs=WORLD)
        for rank in range(WORLD):
            print(Path(folder, f"{rank}.txt").read_text())


if __name__ == "__main__":
    main()
