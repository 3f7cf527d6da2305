"""What has no gradient stops DualPipe: a tensor that no stage uses leaves ranks waiting, a frozen stage is an error.

What: a tensor that a stage hands on and the next one does not use leaves ranks waiting for ever. A frozen first stage
  (an embedding, when a model is fine-tuned) ends the step in "element 0 of tensors does not require grad".
Where: dualpipe 1.0.0 (and main of March 2025): dualpipe/comm.py, append_isend; dualpipe/dualpipe.py,
  _backward_compute_chunk.
Why: gradients that are None are not sent, and a receive is posted for every tensor. And every stage's backward is run,
  whether its outputs need a gradient or not.
Requirement: FWD-12, FWD-10, TRN-15; SPL-1, TRN-5, LIF-6.
Schedules: DualPipe and DualPipeV.
Possible fix: send zeros for a gradient that is None; run no backward of outputs that need none.
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


CASES = ("every tensor is used", "one tensor is used by no stage", "stage 0 is frozen")


class Stage(nn.Linear):
    def __init__(self, index, case):
        super().__init__(3, 3)
        self.index, self.case = index, case
        if index == 0 and case == "stage 0 is frozen":
            self.requires_grad_(False)

    def forward(self, x, beside=None):
        output = super().forward(x)
        if self.index == WORLD - 1:
            return output if self.case == "one tensor is used by no stage" else output + beside
        return output, output * 2


def run(rank, case):
    import dualpipe

    torch.manual_seed(0)
    stages = [Stage(s, case) for s in range(WORLD)]
    dualpipe.set_p2p_tensor_shapes([(1, 3), (1, 3)])
    dualpipe.set_p2p_tensor_dtype(torch.float32)
    pipe = engine((stages[rank], stages[WORLD - 1 - rank]))
    x, y = torch.randn(M, 3), torch.randn(M, 3)
    try:
        pipe.step(x, num_chunks=2 * M, criterion=nn.functional.mse_loss, labels=[y])
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
