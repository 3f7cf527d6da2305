"""No form of a name makes DistributedDataParallel ignore a parameter of the outermost module.

What: names to be ignored are documented as "{module_name}.{param_name}" over named_modules(), which for the outermost
  module is ".own". With that name the gradient is left alone, but the constructor broadcasts the parameter over it.
  With "own", as named_parameters() says, it is not broadcast, but its gradient is averaged. With both it is ignored.
Where: torch 2.13.0, nn/parallel/distributed.py: _build_params_for_reducer, line 1536, looks for
  f"{module_name}.{param_name}"; lines 898 and 1071 (_sync_module_states) look for the name of named_parameters().
Why: the two names are equal in every submodule, and differ in the outermost module.
Requirement: DPW-6.
Known: none found; the interface is private, and used by torchrec and Lightning.
Possible fix: look for names as named_parameters() gives them, everywhere.
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


class Scaled(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.own = nn.Parameter(torch.full((1,), rank + 1.0))

    def forward(self, x):
        return self.inner(x) * self.own


def run(rank):
    for names in ([".own"], ["own"], ["own", ".own"]):
        torch.manual_seed(0)
        module = Scaled(rank)
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)
        wrapper = DistributedDataParallel(module)
        value = float(module.own.detach())
        x = torch.full((1, 2), 1.0 + rank)
        wrapper(x).sum().backward()
        local = float(module.inner(x).sum().detach())
        actual = float(module.own.grad)
        yield (
            f"ignored {names}: value expected {rank + 1.0:.4f}, actual {value:.4f};"
            f" gradient expected {local:.4f}, actual {actual:.4f}"
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
