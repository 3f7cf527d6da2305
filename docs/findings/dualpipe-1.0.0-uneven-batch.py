"""A batch that cannot be divided evenly gives outputs with rows of uninitialised memory, and too many of them.

What: 6 samples for each end of the pipeline in 4 microbatches: the outputs have 8 rows, of which two are what lay in
  memory, and so have losses and gradients. No error. (NCCL, which asks for messages of equal sizes, may wait.)
Where: dualpipe 1.0.0 (and main of March 2025), dualpipe/utils.py, chunk_tensor, and dualpipe/comm.py.
Why: batches are split by tensor_split, into microbatches of 2, 2, 1 and 1 samples, and every message is received into
  a buffer of the one shape that was set; gloo takes a shorter message without a word.
Requirement: FWD-2.
Schedules: DualPipe and DualPipeV.
Possible fix: refuse a microbatch of another shape than was set.
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


CASES = (8, 6)  # samples of each end


def run(rank, samples):
    import dualpipe

    torch.manual_seed(0)
    stages = [nn.Linear(3, 3) for _ in range(WORLD)]
    halves = [torch.randn(samples, 3) for _ in range(WORLD)]
    dualpipe.set_p2p_tensor_shapes([(2, 3)])
    dualpipe.set_p2p_tensor_dtype(torch.float32)
    pipe = engine((stages[rank], stages[WORLD - 1 - rank]))
    _, outputs = pipe.step(
        halves[rank],
        num_chunks=2 * M,
        criterion=lambda output, label: (output**2).mean(),
        labels=[halves[1 - rank]],
        return_outputs=True,
    )
    return f"{samples} samples entered on the other rank, {len(outputs)} outputs leave here"


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
        print(f"{case} samples for each end, in {M} microbatches")
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
