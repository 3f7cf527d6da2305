"""DistributedDataParallel begins a delayed all-reduce and does not wait for it.

What: when backward returns, parameters in delay_all_reduce_named_params have whatever the all-reduce has got to. A
  communication hook that communicates nothing, as in local SGD, leaves nothing else to wait for: where a rank is late,
  the others read their own gradient divided by the number of ranks. Without such a hook backward waits for the other
  parameters' reduction, and the delayed one is mostly done by then, but not always (once in ten with 4 MiB).
Where: torch 2.13.0, nn/parallel/distributed.py: _delayed_all_reduce_hook, line 1203, drops the Work of
  dist.all_reduce(..., async_op=True).
Why: with NCCL no later kernel is made to wait for the communication's stream, either: that is what Work.wait does.
Requirement: DPW-29.
Known: none found; the option came with pytorch#96673.
Possible fix: keep the Work, and wait for it in a callback at the end of backward.
"""

import os
import re
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
SECONDS = 20


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
        nn.init.ones_(self.first.weight)

    def forward(self, x):
        return self.last(self.first(x)).sum()


def local(state, bucket):
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def run(rank):
    module = Model()
    wrapper = DistributedDataParallel(
        module,
        delay_all_reduce_named_params=[("last.weight", module.last.weight)],
        param_to_hook_all_reduce=module.first.weight,
    )
    wrapper.register_comm_hook(None, local)
    loss = wrapper(torch.full((1, 2), 1.0 + rank))
    if rank == 1:
        time.sleep(1)
    loss.backward()
    at_once = float(module.last.weight.grad[0, 0])
    time.sleep(3)
    later = float(module.last.weight.grad[0, 0])
    if rank == 0:
        yield f"gradient expected {3.0:.4f}, actual {at_once:.4f}; three seconds later {later:.4f}"


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
            text = path.read_text()
            print(text, end="")
            if re.search(r"actual (\S+); three seconds later \1$", text):
                sys.exit("inconclusive: this time the all-reduce was done before backward returned")


if __name__ == "__main__":
    main()
