"""A table that has a forward twice is accepted, and its step stands still.

What: torch checks a table that a user loads into its runtime (torchtitan: pipeline_parallel_schedule_csv): it counts
  the forwards and backwards of every stage. A table that lacks one is refused when it is loaded, on every rank. A table
  that has one twice is accepted; in the step one rank raises, and another one waits for it.
Where: torch 2.13.0, distributed/pipelining/schedules.py, _validate_schedule, lines 1635 to 1643 and 1724 to 1745.
Why: the microbatches of every stage are kept in sets, so that a second forward, or backward, of the same one is not
  counted.
Requirement: ERR-19.
Schedules: a table of the user's own, on two ranks or more.
Possible fix: refuse a computation that the set has already.
"""

import csv
import os
import sys
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
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WORLD = 2
M = 2
TABLES = {
    "right": (("0F0", "0F1", "0B0", "0B1"), ("1F0", "1B0", "1F1", "1B1")),
    "without 0B1": (("0F0", "0F1", "0B0"), ("1F0", "1B0", "1F1", "1B1")),
    "with 1F1 twice": (("0F0", "0F1", "0B0", "0B1"), ("1F0", "1B0", "1F1", "1F1", "1B1")),
}
PATIENCE = timedelta(seconds=10)


def step(rank, table, folder):
    """What loading the table and one training step come to."""
    path = Path(folder, f"table-{rank}.csv")
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(table)
    torch.manual_seed(rank)
    stage = PipelineStage(nn.Linear(1, 1), rank, WORLD, torch.device("cpu"))
    schedule = _PipelineScheduleRuntime([stage], M, loss_fn=nn.functional.mse_loss)
    try:
        schedule._load_csv(str(path))
    except AssertionError as error:
        return f"refused when it is loaded: {' '.join(str(error).split())}"
    x, y = torch.ones(M, 1), torch.zeros(M, 1)
    begun = time.monotonic()
    try:
        schedule.step(x) if rank == 0 else schedule.step(target=y)
    except Exception as error:
        if time.monotonic() - begun > PATIENCE.total_seconds() / 2:
            return "accepted; the step waits until the group's timeout"
        return f"accepted; the step raises {type(error).__name__}: {' '.join(str(error).split())}"
    return "accepted; the step ends"


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=PATIENCE)
    lines = [f"{name}, rank {rank}: {step(rank, table, folder)}" for name, table in TABLES.items()]
    Path(folder, f"{rank}.txt").write_text("".join(f"{line}\n" for line in lines))
    while not all(Path(folder, f"{one}.txt").exists() for one in range(WORLD)):
        time.sleep(0.1)  # no connection closes before the other rank has given up
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
