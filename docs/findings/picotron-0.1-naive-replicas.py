"""DataParallelNaive averages parameters over the replicas, and leaves their gradients as they are.

What: the simplest of the engine's wrappers, "a good starting point to understand how data parallelism works", is to
  average gradients in the backward. It averages the parameters: every replica keeps the gradient of its own data, and
  steps by it. The replicas differ after each step, and are pulled together in the next backward, after its gradients
  were computed with parameters that differ. There is no error; train.py uses `DataParallelBucket`, which is right.
Where: picotron 0.1.0 (commit 59714b1 of August 2025), picotron/data_parallel/data_parallel.py, DataParallelNaive,
  register_backward_hook (line 33) and _allreduce_grads (line 41): "Performs an all-reduce operation to synchronize
  gradients across multiple processes".
Why: torch calls a hook of `register_post_accumulate_grad_hook` with the parameter, and not with its gradient.
Requirement: none (the wrapper has no `backward`, so that no pipeline can be in it; near DPC-1).
Schedules: without a pipeline.
Known: picotron#39 (https://github.com/huggingface/picotron/issues/39), open, in which it is asked about.
Possible fix: reduce `param.grad`.
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
from picotron.data_parallel.data_parallel import DataParallelBucket, DataParallelNaive
from torch import nn

WORLD, RATE = 2, 0.5
INPUTS = torch.tensor([[1.0], [3.0]])


def worker(rank, folder):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    pgm.setup_process_group_manager(tp_size=1, cp_size=1, pp_size=1, dp_size=WORLD)
    lines = [f"replica {rank}"]
    for kind in (DataParallelBucket, DataParallelNaive):
        layer = nn.Linear(1, 1, bias=False)
        nn.init.constant_(layer.weight, 10.0)
        model = kind(layer)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        for step in (1, 2):
            optimizer.zero_grad()
            before = layer.weight.item()
            model(INPUTS[rank]).backward()
            backward, gradient = layer.weight.item(), layer.weight.grad.item()
            optimizer.step()
            if kind is DataParallelBucket:
                model.reset()
            lines.append(
                f"  {kind.__name__}, step {step}: weight {before:.2f} before the backward and {backward:.2f} after it, "
                f"gradient {gradient:.2f}, weight {layer.weight.item():.2f} after the step"
            )
    Path(folder, f"{rank}.txt").write_text("\n".join(lines))
    dist.barrier()
    os._exit(0)


def main():
    print(
        f"y = weight * x, x is {INPUTS[0].item()} and {INPUTS[1].item()}: the mean of the gradients is {INPUTS.mean()}"
    )
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=WORLD)
        for rank in range(WORLD):
            print(Path(folder, f"{rank}.txt").read_text())


if __name__ == "__main__":
    main()
