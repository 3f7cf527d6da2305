"""A trained DistributedDataParallel with static_graph never averages gradients again once it comes back from a pickle.

What: after pickle.loads(pickle.dumps(wrapper)) in the default process group every rank trains with its own gradients,
  in every step, without a word. Without static_graph they are averaged.
Where: torch 2.13.0, nn/parallel/distributed.py: __getstate__ keeps _static_graph_delay_allreduce_enqueued.
Why: it says that the first step's one reduction is done, but __setstate__ makes a new reducer, which waits for it.
Requirement: DPW-36.
Known: none found.
Possible fix: set _static_graph_delay_allreduce_enqueued to False in __setstate__.
"""

import copy
import os
import pickle
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


STEPS = 4


def run(rank):
    for static in (False, True):
        torch.manual_seed(0)
        module = nn.Linear(2, 1).double()
        plain = copy.deepcopy(module)
        wrapper = DistributedDataParallel(module, static_graph=static)
        for step in range(STEPS):
            if step == 1:
                wrapper = pickle.loads(pickle.dumps(wrapper))
            plain.zero_grad()
            wrapper.zero_grad()
            xs = [torch.full((1, 2), 1.0 + r + step, dtype=torch.float64) for r in range(WORLD)]
            wrapper(xs[rank]).square().sum().backward()
            for x in xs:
                (plain(x).square().sum() / WORLD).backward()
            expected = float(plain.weight.grad[0, 0])
            actual = float(wrapper.module.weight.grad[0, 0])
            yield f"static_graph={static}, step {step}: gradient expected {expected:.4f}, actual {actual:.4f}"


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
