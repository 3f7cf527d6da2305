"""With a static graph, gradients are not averaged when the module returns a dataclass.

What: static_graph=True reduces the first step's gradients at the end of backward, and what asks for that is attached
  to the output's tensors. In a dataclass they are not found: every rank keeps its own gradients, without a word, in the
  first step and in the next. A dict is right, and so is a dataclass without static_graph.
Where: torch 2.13.0, nn/parallel/distributed.py, _post_forward, line 1852: _tree_flatten_with_rref takes a dataclass
  for a leaf, so _DDPSink, whose backward queues the reduction, gets no tensor.
Why: the search for unused parameters looks into dataclasses (_find_tensors), this does not.
Requirement: DPW-24.
Known: https://github.com/pytorch/pytorch/issues/106690; a try at it in https://github.com/pytorch/pytorch/pull/93105.
Possible fix: queue the callback in the first parameter's hook, or refuse outputs in which no tensor is found.
"""

import dataclasses
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


@dataclasses.dataclass
class Output:
    value: torch.Tensor


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.inner, self.kind = nn.Linear(2, 1, bias=False), kind

    def forward(self, x):
        return self.kind(value=self.inner(x))


def run(rank):
    for kind in (dict, Output):
        for static in (False, True):
            torch.manual_seed(0)
            wrapper = DistributedDataParallel(Model(kind), static_graph=static)
            for step in range(2):
                wrapper.zero_grad()
                result = wrapper(torch.full((1, 2), 1.0 + rank))
                value = result["value"] if kind is dict else result.value
                value.sum().backward()
                actual = float(wrapper.module.inner.weight.grad[0, 0])
                yield (
                    f"{kind.__name__}, static_graph={static}, step {step}: gradient expected 1.5000,"
                    f" actual {actual:.4f}"
                )


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
