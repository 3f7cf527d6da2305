"""Ranks whose plans differ, or one of which is wrong, are not compared: one raises and the others wait.

What: two ranks, one stage each, GPipe. Rank 1 alone is told of a schedule that there is not, of four stages instead of
  two, or of four microbatches instead of two. It raises by itself (of the microbatches only in the first step, in the
  loss function); rank 0, whose process knows nothing of it, waits until the group's time-out. Where both are told of
  three stages, rank 0 has two and raises alone.
Where: torch 2.13.0, distributed/pipelining: get_schedule_class and PipelineStage look at their own rank's arguments;
  the only exchange before the first step (schedules.py, _initialize_pp_stages) is a vote on static or dynamic mode.
Why: neither num_stages, nor n_microbatches, nor the schedule's class is compared between ranks.
Requirement: ERR-9.
Schedules: all; two ranks or more.
Known: -
Possible fix: exchange the three with the vote, before anything is raised.
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
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

WORLD = 2
RIGHT = {"schedule": "GPipe", "stages": 2, "microbatches": 2}
TOLD = {
    "rank 1 is told the same": {},
    "rank 1 is told of another schedule": {"schedule": "NoSuchSchedule"},
    "rank 1 is told of four stages": {"stages": 4},
    "rank 1 is told of four microbatches": {"microbatches": 4},
    "both ranks are told of three stages": {"stages": 3},
}


def run(rank, told):
    plan = {**RIGHT, **(TOLD[told] if rank or told.startswith("both") else {})}
    torch.manual_seed(rank)
    own = [s for s in range(plan["stages"]) if s % WORLD == rank]
    stages = [PipelineStage(nn.Linear(3, 3), s, plan["stages"], torch.device("cpu")) for s in own]
    schedule_class = get_schedule_class(plan["schedule"])
    schedule = schedule_class(
        stages if len(stages) > 1 else stages[0], plan["microbatches"], loss_fn=nn.functional.mse_loss
    )
    x = torch.randn(8, 3)
    schedule.step(target=x) if rank else schedule.step(x)


def worker(rank, folder, told):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=5),
    )
    try:
        run(rank, told)
        text = "the step has run"
    except Exception as error:
        late = "waited until the group's time-out" if "imed out" in str(error) else None
        text = late or f"{type(error).__name__}: {str(error.__cause__ or error).splitlines()[0][:60]}"
    Path(folder, f"{rank}.txt").write_text(text)
    while not all(Path(folder, f"{r}.txt").exists() for r in range(WORLD)):
        time.sleep(0.1)  # a closing socket would wake the other rank up
    os._exit(0)


def main():
    for told in TOLD:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, args=(folder, told), nprocs=WORLD)
            print(f"{told}:")
            for rank in range(WORLD):
                print(f"  rank {rank}: {Path(folder, f'{rank}.txt').read_text()}")


if __name__ == "__main__":
    main()
