"""The first rank is not told that another rank's parameter has another shape: it waits in the constructor.

What: DistributedDataParallel compares every rank's parameters with the first rank's. The ranks that differ raise an
  error that names sizes; the first rank raises nothing, goes on to broadcast its parameters, and waits for the others.
  Where they end, it learns that a connection broke; where they live on, it waits until the timeout.
Where: torch 2.13.0, distributed/utils.py, _verify_param_shape_across_processes (in c10d/reducer.cpp,
  verify_params_across_processes: the first rank broadcasts its sizes and compares nothing).
Why: the comparison's outcome is not told to the first rank.
Requirement: DPW-3.
Known: https://github.com/pytorch/pytorch/issues/76449 (open).
Possible fix: an all-reduce of "mine differ" after the comparison, and the error on every rank.
"""

import contextlib
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
from torch.nn.parallel import DistributedDataParallel

WORLD = 2
SECONDS = 3


def run(rank):
    module = nn.Linear(4, 3 + rank)
    try:
        DistributedDataParallel(module)
    except Exception as error:
        told = str(error).partition("] in this process")
        yield f"{type(error).__name__} " + (
            "that names params[0] and sizes" if told[1] else "that names no parameter"
        )
    else:
        yield "no error"


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=SECONDS),
    )
    lines = list(run(rank))
    Path(folder, f"{rank}.txt").write_text("".join(f"rank {rank}: {line}\n" for line in lines))
    with contextlib.suppress(RuntimeError):
        dist.barrier()  # neither process ends before the other has seen what it sees
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
