"""DistributedDataParallel with find_unused_parameters reduces nothing on a rank whose backward reaches no parameter.

What: on one rank the output does not depend on any parameter (a step that skips the model, a batch that no expert
  takes), but on an input that requires a gradient, so there is a backward. That rank takes no part in the step's
  reduction. Where it uses the model in its next step while another rank does not, gradients of two different steps are
  averaged, without a word; otherwise the others wait until the timeout. The documentation says of
  find_unused_parameters: "Parameters that don't receive gradients as part of this graph are preemptively marked as
  being ready to be reduced."
Where: torch 2.13.0, torch/csrc/distributed/c10d/reducer.cpp: prepare_for_backward notes the unused parameters, but they
  are marked as ready by the hook of the first parameter that gets a gradient; here none does.
Requirement: DPW-9.
Known: pytorch#40566 (open; the backward "will not work").
Possible fix: a hook on the outputs that queues a callback, which marks what is not ready when the backward ends.
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
from torch.nn.parallel import DistributedDataParallel

WORLD = 2
SECONDS = 6


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)

    def forward(self, x, use):
        if use == "nothing":
            return (x * 2).sum()
        return (self.part(x) + (self.other(x) if use == "both" else 0)).sum()


def trained(rank, steps):
    """The first number of the gradient of `part`, step by step; its own is 10 times the step, plus the rank, plus 1."""
    torch.manual_seed(0)
    wrapper = DistributedDataParallel(Model(), find_unused_parameters=True)
    for step, uses in enumerate(steps):
        wrapper.zero_grad()
        try:
            wrapper(torch.full((1, 2), 10.0 * step + rank + 1, requires_grad=True), uses[rank]).backward()
        except RuntimeError as error:
            waited = any(
                words in str(error).lower() for words in ("timed out", "timeout")
            )  # of gloo, or its pair
            yield "timed out" if waited else f"RuntimeError: {error}"
            return
        gradient = wrapper.module.part.weight.grad
        yield None if gradient is None else gradient[0, 0].item()


def run(rank):
    for steps, expected in (
        ((("both", "part"),), "1.5"),
        ((("both", "nothing"), ("nothing", "both")), "0.5, 6.0"),
        ((("both", "nothing"),), "0.5"),
    ):
        told = ", then ".join(f"{a} on rank 0 and {b} on rank 1" for a, b in steps)
        found = ", ".join(map(str, trained(rank, steps)))
        yield f"{told}: gradients {found} (expected {expected})"


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
    time.sleep(0 if rank == 0 else SECONDS + 2)  # rank 0 is not to lose its connection before
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
