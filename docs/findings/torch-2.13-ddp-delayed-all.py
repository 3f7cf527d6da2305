"""DistributedDataParallel fails where the reductions of all its parameters are delayed.

What: where every trained parameter is delayed, or ignored, the constructor raises "input module must be on the same
  type of devices, but ... locate in set()"; where a frozen one remains, the first forward raises an AttributeError.
  The code has a path for this case, which logs "Delay the AllReduce of all parameters".
Where: torch 2.13.0, nn/parallel/distributed.py: __init__ computes device types of no parameters, and returns early,
  before _lazy_init_ran is set, which _pre_forward reads first.
Requirement: DPW-29.
Known: none found; the option came with pytorch#96673.
Possible fix: set what forward reads before the return, and take the devices from all of the module's parameters.
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


class Model(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.first, self.last = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
        if frozen:
            self.still = nn.Linear(2, 2, bias=False).requires_grad_(False)

    def forward(self, x):
        return self.last(self.first(x)).sum()


def run(rank):
    for frozen in (False, True):
        module = Model(frozen)
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["first.weight"])
        try:
            wrapper = DistributedDataParallel(
                module,
                delay_all_reduce_named_params=[("last.weight", module.last.weight)],
                param_to_hook_all_reduce=module.first.weight,
            )
            wrapper(torch.ones(1, 2)).backward()
            yield f"a frozen parameter: {frozen}: trained"
        except (ValueError, AttributeError) as error:
            yield f"a frozen parameter: {frozen}: {type(error).__name__}: {error}"


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
