"""After zero_grad(set_to_none=False) replicas count the gradient of the next first microbatch twice.

What: `DataParallelBucket` adds up the gradients of microbatches in buffers of its own. If gradients are zeroed in
  place, as by `zero_grad(set_to_none=False)`, the first microbatch of the next step counts twice. There is no error.
  With bfloat16 parameters, or without replicas, the same call is right; train.py sets gradients to None.
Where: picotron 0.1.0 (commit 59714b1 of August 2025), picotron/data_parallel/data_parallel.py, DataParallelBucket,
  _post_backward (line 165) and the hook of _make_param_hook (line 131).
Why: `p.grad = p.main_grad.to(p.dtype)` makes no copy of float32. What torch then adds to `.grad` in place is in the
  buffer already when `param.main_grad.add_(param.grad.data)` adds it.
Requirement: none (steps of replicas are drawn with gradients set to None; near DPC-4).
Schedules: all, and without a pipeline.
Known: no thread about this is known.
Possible fix: let `reset` set the gradients of its parameters to None, or copy in `_post_backward`.
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")
if not sys.warnoptions:
    warnings.simplefilter("ignore")

import picotron.process_group_manager as pgm
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from picotron.data_parallel.data_parallel import DataParallelBucket
from torch import nn

WORLD = 2
MICROBATCHES = (1.0, 10.0)


def worker(rank, folder):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    pgm.setup_process_group_manager(tp_size=1, cp_size=1, pp_size=1, dp_size=WORLD)
    lines = []
    for dtype in (torch.float32, torch.bfloat16):
        for to_none in (True, False):
            layer = nn.Linear(1, 1, bias=False).to(dtype)
            model, found = DataParallelBucket(layer), []
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            for _ in range(2):
                optimizer.zero_grad(set_to_none=to_none)
                for number, value in enumerate(MICROBATCHES):
                    model.require_backward_grad_sync = number == len(MICROBATCHES) - 1
                    model(torch.tensor([value], dtype=dtype)).backward()
                found.append(layer.weight.grad.item())
                optimizer.step()
                model.reset()
            kind = str(dtype).removeprefix("torch.")
            lines.append(
                f"{kind}, set_to_none={to_none}: the gradient is {found[0]}, and in the next step {found[1]}"
            )
    if rank == 0:
        Path(folder, "told.txt").write_text("\n".join(lines))
    dist.barrier()
    os._exit(0)


def main():
    print(
        f"y = weight * x, x is {' and then '.join(map(str, MICROBATCHES))}, on both replicas: the gradient is the sum"
    )
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=WORLD)
        print(Path(folder, "told.txt").read_text())


if __name__ == "__main__":
    main()
