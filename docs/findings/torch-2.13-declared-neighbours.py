"""Adjacent stages whose input_args and output_args disagree are not compared: a wrong receive buffer in the first step.

What: two stages, all metadata given by the user (so nothing is inferred). Stage 1 says that it takes another width, or
  another dtype, than stage 0 says that it gives. Nothing is said when stages and schedule are built. In the first
  step a wider buffer than what comes is handed to stage 1, with memory nobody wrote in its tail: its own matrix product
  raises on rank 1, rank 0 waits until the group's time-out. A buffer of a smaller dtype is written past its end:
  gloo aborts the receiving process.
Where: torch 2.13.0, distributed/pipelining/stage.py, _prepare_forward_infra, lines 2228 and following ("STATIC mode:
  metadata comes from user inputs, no validation needed").
Why: ranks vote on static or dynamic mode, and exchange no metadata when all of them vote for static.
Requirement: ERR-8.
Schedules: all; neighbouring stages on two ranks, all stages with input_args and output_args.
Known: -
Possible fix: send the output's metadata with the vote, and compare them with the next stage's input_args.
"""

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
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

WORLD = 2
WIDTH = 512
TAKEN = {
    "stage 1 takes what stage 0 gives": ((2, WIDTH), torch.float64),
    "stage 1 takes another width": ((2, WIDTH + 1), torch.float64),
    "stage 1 takes a smaller dtype": ((2, WIDTH), torch.float32),
}


def worker(rank, folder, taken):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=5),
    )
    shape, dtype = TAKEN[taken]
    given = torch.empty(2, WIDTH, dtype=torch.float64, requires_grad=bool(rank))
    takes = torch.empty(shape, dtype=dtype, requires_grad=True) if rank else given
    gives = torch.empty(2, WIDTH, dtype=torch.float64, requires_grad=True)
    module = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
    stage = PipelineStage(module, rank, WORLD, torch.device("cpu"), input_args=(takes,), output_args=(gives,))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, target: output.sum())
    said = Path(folder, f"{rank}.txt")
    said.write_text("built; no answer to the step")
    x = torch.ones(4, WIDTH, dtype=torch.float64)
    try:
        schedule.step(target=x) if rank else schedule.step(x)
        told = "the step has run"
    except RuntimeError as error:
        late = "waited until the group's time-out" if "imed out" in str(error) else None
        told = late or str(error.__cause__ or error).splitlines()[0][:60]
    said.write_text(f"built; {told}")
    Path(folder, f"{rank}.done").touch()
    begun = time.monotonic()
    while not Path(folder, f"{1 - rank}.done").exists() and time.monotonic() < begun + 15:
        time.sleep(0.1)  # a closing socket would wake the other rank up
    os._exit(0)


def main():
    for taken in TAKEN:
        with tempfile.TemporaryDirectory() as folder:
            start = mp.get_context("spawn").Process
            processes = [start(target=worker, args=(rank, folder, taken)) for rank in range(WORLD)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=60)
            ended = [Path(folder, f"{rank}.txt").exists() for rank in range(WORLD)]
            if not all(ended) and processes[1].exitcode != -6:
                sys.exit(f"inconclusive: {taken}: a rank gave no result")
            print(f"{taken}:")
            died = processes[1].exitcode == -6
            for rank in range(WORLD):
                end = "died (SIGABRT)" if rank and died else Path(folder, f"{rank}.txt").read_text()
                if not rank and died:
                    end = "built; loses its connection"
                print(f"  rank {rank}: {end}")


if __name__ == "__main__":
    main()
