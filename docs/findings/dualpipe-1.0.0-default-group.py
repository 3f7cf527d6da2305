"""DualPipe sends on the default group, although it is given one of its own: messages of others are taken for its own.

What: with `process_group`, all messages of a step go over the default process group. Another message between the same
  two ranks there, sent before the step and received after it, is taken for an activation: outputs and gradients
  are wrong, without an error.
Where: dualpipe 1.0.0 (and main of March 2025), dualpipe/comm.py, append_irecv and append_isend.
Why: `dist.P2POp(dist.irecv, tensor, src)` is made without a group; the group only serves to number the ranks.
Requirement: COM-2.
Schedules: DualPipe and DualPipeV.
Known: https://github.com/radixark/Megatron-LM/pull/83 mends the same in a fork of Megatron-LM.
Possible fix: `dist.P2POp(dist.irecv, tensor, src, group)`.
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


CASES = ("no other message", "another message on the default group, before the step and after it")


def run(rank, case):
    import dualpipe

    group = dist.new_group(list(range(WORLD)))
    torch.manual_seed(0)
    stages = [nn.Linear(3, 3, bias=False) for _ in range(WORLD)]
    x, y = torch.randn(2 * M, 3), torch.randn(2 * M, 3)
    dualpipe.set_p2p_tensor_shapes([(1, 3)])
    dualpipe.set_p2p_tensor_dtype(torch.float32)
    pipe = engine((stages[rank], stages[WORLD - 1 - rank]), process_group=group)
    entering, leaving = (slice(0, M), slice(M, 2 * M)) if rank == 0 else (slice(M, 2 * M), slice(0, M))
    other, request = torch.full((1, 3), 7.0), None
    if case != CASES[0] and rank == 0:
        request = dist.isend(other, 1)
    _, outputs = pipe.step(
        x[entering],
        num_chunks=2 * M,
        criterion=nn.functional.mse_loss,
        labels=[y[leaving]],
        return_outputs=True,
    )
    right = torch.allclose(outputs, stages[1](stages[0](x[leaving])))
    found = f"outputs {'right' if right else 'wrong'}"
    if case == CASES[0]:
        return found
    if rank == 0:
        request.wait()
        return found
    received = torch.zeros(1, 3)
    dist.recv(received, 0)
    return f"{found}; the other message {'right' if torch.equal(received, other) else 'wrong'}"


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
