"""FullyShardedDataParallel cannot show gradients where a rank has no part of any trained parameter, unless in float32.

What: `summon_full_params(with_grads=True)` gathers the gradients' shards. A rank whose shard holds frozen parameters
  only, or padding, has no gradient and stands in with zeros: in float32, whatever the parameters are. In float64 (and
  bfloat16) the ranks' messages have different sizes, and gloo ends a process by SIGABRT.
Where: torch 2.13.0, distributed/fsdp/_flat_param.py, FlatParamHandle.unshard_grad.
Why: `torch.zeros(flat_param._sharded_size, device=self.device)` lacks the dtype of the gradients.
Requirement: DPW-39.
Known: near https://github.com/pytorch/pytorch/issues/112717 (closed: the same function, for the tensor that receives).
Possible fix: `dtype=flat_param.dtype`, or that of the other ranks' gradients, which is agreed on beforehand.
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
from torch.distributed.fsdp import FullyShardedDataParallel

WORLD = 2
DTYPES = ("float32", "float64", "bfloat16")


def run(dtype):
    torch.manual_seed(0)
    module = nn.Linear(4, 3, dtype=getattr(torch, dtype))
    module.weight.requires_grad_(False)  # 12 of 15 elements: the first rank's shard has nothing else
    wrapped = FullyShardedDataParallel(module, use_orig_params=True, device_id=torch.device("cpu"))
    wrapped(torch.ones(2, 4, dtype=getattr(torch, dtype))).sum().backward()
    with FullyShardedDataParallel.summon_full_params(wrapped, with_grads=True, writeback=False):
        return f"the gradient of the bias is {module.bias.grad.tolist()}"


def worker(rank, folder, dtype):
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the stacks of a process that is aborted
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=100),
    )
    try:
        told = run(dtype)
    except Exception as error:
        told = f"{type(error).__name__}"
    Path(folder, f"{rank}.txt").write_text(told)
    dist.barrier()  # neither process ends before the other has told what it saw
    os._exit(0)


def main():
    for dtype in DTYPES:
        with tempfile.TemporaryDirectory() as folder:
            context = mp.get_context("spawn")
            processes = [context.Process(target=worker, args=(r, folder, dtype)) for r in range(WORLD)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=120)
            aborted = [process.exitcode == -6 for process in processes]
            for process in processes:
                process.kill()
            if any(aborted):
                print(f"{dtype}: a process was aborted (SIGABRT)")
                continue
            for rank in range(WORLD):
                path = Path(folder, f"{rank}.txt")
                if not path.exists():
                    sys.exit(f"inconclusive: {dtype}: rank {rank} gave no result")
                print(f"{dtype}, rank {rank}: {path.read_text()}")


if __name__ == "__main__":
    main()
