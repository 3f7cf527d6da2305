"""DistributedDataParallel's delayed all-reduce is for parameters of the default dtype only.

What: a parameter of another dtype in delay_all_reduce_named_params is a RuntimeError in the first forward, which
  is about an assigned gradient's dtype. A parameter on a GPU is an error, too, unless device_ids is given, though the
  documentation allows None: "attempting to assign a gradient with device type 'cpu' to a tensor with device type
  'cuda'".
Where: torch 2.13.0, nn/parallel/distributed.py: _register_delay_all_reduce_hook, line 1210, makes one buffer for all of
  them with torch.zeros(...), without a dtype, and on the CPU unless device_ids names a device; _clear_grad_buffer
  assigns views of it as gradients.
Why: the buffer has the default dtype and the default device.
Requirement: DPW-29.
Known: none found; the option came with pytorch#96673.
Possible fix: a buffer for each dtype, or an error in the constructor that names the parameter.
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


def run(rank):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(dtype)
        wrapper = DistributedDataParallel(
            module,
            delay_all_reduce_named_params=[("1.weight", module[1].weight), ("1.bias", module[1].bias)],
            param_to_hook_all_reduce=module[0].weight,
        )
        try:
            wrapper(torch.ones(1, 2, dtype=dtype)).sum().backward()
            yield f"{dtype}: trained"
        except RuntimeError as error:
            yield f"{dtype}: RuntimeError: {str(error).partition('.')[0]}"


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
