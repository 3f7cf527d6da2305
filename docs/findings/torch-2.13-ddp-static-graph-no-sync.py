"""A static graph and no_sync: accumulation before the first synchronised backward ends in an internal assertion.

What: with static_graph=True a backward inside no_sync, before any synchronised one, raises "expect_autograd_hooks_
  INTERNAL ASSERT FAILED". After one synchronised step accumulation works.
Where: torch 2.13.0, torch/csrc/distributed/c10d/reducer.cpp, line 1732, finalize_backward; what calls it is _DDPSink in
  nn/parallel/distributed.py, which queues the first pass's reduction in a backward that is not to be reduced.
Why: the forward inside no_sync does not prepare the reducer, the backward takes itself for the first pass.
Requirement: DPW-7.
Known: https://github.com/pytorch/pytorch/pull/187732 (open), which names the change that brought it.
Possible fix: queue the reduction in a backward that synchronises only.
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
from torch.nn.parallel import DistributedDataParallel

WORLD = 2
SECONDS = 20


def step(wrapper, rank):
    """One batch inside no_sync, one outside; the mean over ranks of their sum is expected."""
    wrapper.zero_grad()
    with wrapper.no_sync():
        wrapper(torch.full((1, 2), 1.0 + rank)).sum().backward()
    wrapper(torch.full((1, 2), 10.0)).sum().backward()
    return float(wrapper.module.weight.grad[0, 0])


def run(rank):
    for static, warm in ((False, False), (True, True), (True, False)):
        torch.manual_seed(0)
        wrapper = DistributedDataParallel(nn.Linear(2, 1, bias=False), static_graph=static)
        if warm:
            wrapper(torch.ones(1, 2)).sum().backward()
        name = f"static_graph={static}, {'after a synchronised step' if warm else 'from the start'}"
        try:
            for _ in range(2):
                yield f"{name}: gradient expected 11.5000, actual {step(wrapper, rank):.4f}"
        except RuntimeError as error:
            yield f"{name}: RuntimeError: {str(error).split(' at ')[0]}"


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
