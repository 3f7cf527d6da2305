"""Microbatches of another shape than the traced one end the receiver, or are mixed with old data.

What: a pipeline from pipeline() takes microbatches of the traced shape only, and does not say so. In a step with
  a larger batch the rank after stage 0, whose buffers have the traced shape, is aborted by gloo (SIGABRT: no
  exception, nothing to catch). In a step with a smaller batch the buffer keeps rows of an earlier microbatch
  behind the new ones, and the last stage returns outputs for samples that were never given.
Where: torch 2.13.0, distributed/pipelining/stage.py, _PipelineStage._create_act_recv_info (buffers from the
  graph's example values); forward_one_chunk validates only in debug mode DETAIL.
Why: what is known from tracing is used for buffers, and never compared with what comes.
Requirement: TRC-5.
Schedules: all, two ranks or more.
Possible fix: compare the microbatches of a step with the traced metadata, always.
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
from torch.distributed.pipelining import pipe_split, pipeline
from torch.distributed.pipelining.schedules import ScheduleGPipe

WORLD = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Identity(), nn.Identity()

    def forward(self, x):
        x = self.first(x) * 1.0
        pipe_split()
        return self.second(x) * 1.0


def run(rank):
    stage = pipeline(Model(), (torch.zeros(2, 1),)).build_stage(rank, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2)
    for rows in (2, 1, 4):
        x = torch.arange(2.0 * rows).reshape(-1, 1)
        expected = (
            x.flatten().tolist()
            if rows == 2
            else f"{x.flatten().tolist()}, or an error that names the shapes"
        )
        try:
            output = schedule.step(*([x] if rank == 0 else []))
            actual = output.flatten().tolist() if rank else "a step"
        except Exception as error:
            actual = type(error).__name__
        if rank:
            print(
                f"{rows} rows in a microbatch, traced with 2: expected {expected}, actual {actual}",
                flush=True,
            )
    return []


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
            process.join()
        for rank, process in enumerate(processes):
            path = Path(folder, f"{rank}.txt")
            if path.exists():
                print(path.read_text(), end="")
            elif process.exitcode in (0, -9):  # it was killed above
                sys.exit(f"inconclusive: rank {rank} gave no result")
            else:
                print(f"rank {rank}: no result, exit code {process.exitcode}")


if __name__ == "__main__":
    main()
