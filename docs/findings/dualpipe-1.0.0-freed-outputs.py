"""Unless outputs are asked for, DualPipe empties what a stage returned, though the stage's backward may need it.

What: a stage that returns a tensor and another one that is computed from it (hidden states and what an auxiliary head
  makes of them, say), or that hands on its input, ends the backward in an error about a tensor without elements. With
  `return_outputs=True`, which is not the default, the step is right.
Where: dualpipe 1.0.0 (and main of March 2025), dualpipe/dualpipe.py, _free_tensors: `tensor.data = torch.Tensor()`.
Why: autograd keeps the tensor itself where a function needs its input; after that assignment it has no elements. It is
  asserted that outputs are no views; that nothing else needs them, is not.
Requirement: FWD-10, with outputs that are not asked for.
Schedules: DualPipe and DualPipeV.
Possible fix: free the memory of a copy, which is sent; or say in the documentation what a stage may return.
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD, M = 2, 4  # ranks (and stages), microbatches
PATIENCE = 15  # seconds; a step takes a few milliseconds


class TorchOnCpu(ModuleType):
    """What the engine sees as torch: it makes its tensors on CUDA."""

    cuda = SimpleNamespace(current_device=lambda: "cpu")

    def __getattr__(self, name):
        return getattr(torch, name)

    def empty(self, *size, device=None, **options):
        return torch.empty(*size, device="cpu", **options)


def engine(modules, **options):
    import dualpipe
    import dualpipe.comm
    import dualpipe.dualpipe

    dualpipe.comm.torch = dualpipe.dualpipe.torch = TorchOnCpu("torch")
    return dualpipe.DualPipe(modules, **options)


CASES = ("return_outputs=True", "return_outputs=False, the default")


class Stage(nn.Linear):
    def __init__(self, index):
        super().__init__(3, 3)
        self.index = index

    def forward(self, x, squares=None):
        output = super().forward(x)
        return (output, output**2) if self.index == 0 else output + squares


def run(rank, case):
    import dualpipe

    torch.manual_seed(0)
    stages = [Stage(s) for s in range(WORLD)]
    dualpipe.set_p2p_tensor_shapes([(1, 3), (1, 3)])
    dualpipe.set_p2p_tensor_dtype(torch.float32)
    pipe = engine((stages[rank], stages[WORLD - 1 - rank]))
    x, y = torch.randn(M, 3), torch.randn(M, 3)
    try:
        pipe.step(
            x,
            num_chunks=2 * M,
            criterion=nn.functional.mse_loss,
            labels=[y],
            return_outputs=case == CASES[0],
        )
    except RuntimeError as error:
        return f"RuntimeError: {str(error).splitlines()[0]}"
    return "the step ends"


def worker(rank, case, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    Path(folder, f"{rank}.txt").write_text(run(rank, case))
    os._exit(0)


def main():
    for case in CASES:
        print(case)
        with tempfile.TemporaryDirectory() as folder:
            make = mp.get_context("spawn").Process
            processes = [make(target=worker, args=(rank, case, folder)) for rank in range(WORLD)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=PATIENCE + 30 * (process is processes[0]))
            waits = [process.exitcode is None for process in processes]
            for process in processes:
                process.kill()
            for rank in range(WORLD):
                path = Path(folder, f"{rank}.txt")
                if not path.exists() and not waits[rank]:
                    sys.exit(f"inconclusive: rank {rank} ended with exit code {processes[rank].exitcode}")
                print(f"  rank {rank}: {path.read_text() if path.exists() else 'waits for the other rank'}")


if __name__ == "__main__":
    main()
