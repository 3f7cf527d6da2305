"""DistributedDataParallel with static_graph never averages gradients of a loss that has gradients in it.

What: with a gradient penalty, a loss with torch.autograd.grad(..., create_graph=True) of the inputs in it, every rank
  trains with its own gradients, in every step, without a word. Without static_graph they are averaged.
Where: torch 2.13.0, nn/parallel/distributed.py: _DDPSink.backward, which enqueues the first step's one reduction.
Why: autograd.grad's backward passes the sink, too, so the reduction runs at the end of that one, when no parameter has
  a gradient; the real backward finds it done. Why later steps are not averaged, either, was not traced.
Requirement: DPW-32.
Known: pytorch#47562 (other cause). The documentation warns that the wrapper does not work with torch.autograd.grad, and
  explains that gradients have to be accumulated in the parameters, as they are here.
Possible fix: enqueue the reduction in the first hook of a parameter instead of in the sink.
"""

import copy
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


STEPS = 3


def penalised(module, x):
    loss = module(x).square().sum()
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    return loss + slope.square().sum()


def run(rank):
    for static in (False, True):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()
        plain = copy.deepcopy(module)
        wrapper = DistributedDataParallel(module, static_graph=static)
        for step in range(STEPS):
            plain.zero_grad()
            wrapper.zero_grad()
            ones = torch.ones(1, 2, dtype=torch.float64)
            xs = [(ones * (0.5 + r + step)).requires_grad_() for r in range(WORLD)]
            penalised(wrapper, xs[rank]).backward()
            for x in xs:
                (penalised(plain, x) / WORLD).backward()
            expected = float(plain[0].weight.grad[0, 0])
            actual = float(module[0].weight.grad[0, 0])
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
