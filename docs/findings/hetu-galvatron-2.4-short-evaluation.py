"""pipedream_flush with forward_only receives a short last microbatch as a long one.

What: with `forward_only`, and a batch that `chunks` does not divide, the last stage receives the last microbatch, which
  is shorter, into a tensor of the size of the others. What follows are rows that nothing was written to. The loss is
  wrong, or the loss function raises; gpipe, and a training step, do it right.
Where: Hetu-Galvatron 2.4.0 (and main of June 2026), galvatron/core/runtime/pipeline/pipeline.py,
  pipedream_flush_forward_backward, the branch `if forward_only` of the steady state (line 548).
Why: recv_tensor_shapes_fwd is chosen before `fwd_num += 1`, and is that of the microbatch which has just been run. The
  branch that trains chooses it again before it receives.
Requirement: none (near TRN-19 (with uneven batches)).
Schedules: pipedream_flush.
Known: no thread about this is known.
Possible fix: choose the shape again in the branch `if forward_only`, too.

The engine runs on CUDA devices; here it runs on CPU with gloo, for which a few calls are patched (below). NCCL has its
own way with a message that is shorter than what is waited for.
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

os.environ.update(GLOO_SOCKET_IFNAME="lo")
if not sys.warnoptions:
    warnings.simplefilter("ignore")
if find_spec("apex") is None:  # its kernels are imported, and not used here
    sys.modules.update(
        {name: MagicMock() for name in ("apex", "apex.optimizers", "apex.multi_tensor_apply", "amp_C")}
    )

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from galvatron.core.runtime.pipeline import PipelineParallel, PipeSequential
from megatron.training.global_vars import set_args
from torch import nn

torch.cuda.device_count = lambda: 1
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda: None

WORLD, CHUNKS, WIDTH = 2, 3, 4


def loss_func(labels, outputs):
    loss = outputs[0].square().mean()
    return loss, (len(outputs[0]), float(loss))


def worker(rank, folder):
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    set_args(SimpleNamespace(sequence_parallel=False, shape_order="BSH", async_grad_reduce=True))
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
    shapes = [[[-1, WIDTH]], None]
    pipe = PipelineParallel(
        PipeSequential(*layers), [0, 1], shapes, chunks=CHUNKS, process_group=range(WORLD)
    )
    runs = {"gpipe": pipe.gpipe_forward_backward, "pipedream_flush": pipe.pipedream_flush_forward_backward}
    lines = []
    for samples in (9, 8):
        x = torch.randn(samples, WIDTH)
        expected = [loss_func(None, [nn.Sequential(*layers)(one)])[1] for one in x.chunk(CHUNKS)]
        for schedule, run in runs.items():
            for forward_only in (False, True):
                found = run([[x], [x]], loss_func, forward_only=forward_only)
                if rank < WORLD - 1:
                    continue
                kind = "evaluation" if forward_only else "training"
                lines.append(f"{schedule}, {kind} of {samples} samples\n")
                for (got, loss), (due, right) in zip(found, expected, strict=True):
                    said = "right" if abs(loss - right) < 1e-5 else "wrong"
                    lines.append(f"  the loss function saw {got} samples, expected {due}; loss {said}\n")
    if rank == WORLD - 1:
        Path(folder, "told.txt").write_text("".join(lines))
    dist.barrier()
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), nprocs=WORLD)
        print(Path(folder, "told.txt").read_text(), end="")


if __name__ == "__main__":
    main()
