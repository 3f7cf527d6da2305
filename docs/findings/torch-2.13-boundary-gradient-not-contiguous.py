"""A gradient that is not contiguous cannot be sent back to the previous stage.

What: where a stage uses one of its inputs transposed, or through a sum, autograd gives the input's gradient as a
  transposed view or as one number expanded (stride 0). The backward raises "input tensor has to be contiguous"
  (gloo), on the rank that sends the gradient or on the one that receives it.
Where: torch 2.13.0, distributed/pipelining/stage.py: get_bwd_send_ops (line 529) puts the gradient that autograd
  gave into a P2POp as it is; _create_grad_recv_info (line 2286) allocates the receive buffer with the strides
  of the gradient that the dry run saw (_make_tensor_from_meta).
Why: an input of a stage is differentiated by torch.autograd.grad, which promises no layout.
Requirement: TRN-15.
Schedules: all (two are shown); only where the neighbouring stage is on another rank.
Known: near https://github.com/pytorch/pytorch/issues/62283 (open: the same in sends without a pipeline, an error with
  gloo and wrong values with NCCL).
Possible fix: send grad.contiguous(), and receive into contiguous buffers.
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
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

WORLD = 2
M = 4
NAMES = ("1F1B", "ZBVZeroBubble")


def num_stages(name):
    return WORLD if name in ("GPipe", "1F1B") else 2 * WORLD


def build(name, rank, modules, **options):
    """This rank's schedule object, and the indices of its stages."""
    n = len(modules)
    v_shaped = name in ("ZBVZeroBubble", "DualPipeV")
    owned = [rank, n - 1 - rank] if v_shaped else list(range(rank, n, WORLD))
    stages = [PipelineStage(modules[s], s, n, torch.device("cpu")) for s in owned]
    cls = get_schedule_class(name)
    return cls(stages if issubclass(cls, PipelineScheduleMulti) else stages[0], M, **options), owned


class Stage(nn.Module):
    """Hands on its activations twice; a later stage uses the second tensor in its own way."""

    def __init__(self, use, *, last):
        super().__init__()
        self.linear, self.use, self.last = nn.Linear(4, 4), use, last

    def forward(self, x, other=None):
        x = self.linear(x)
        if other is not None:
            x = x + USES[self.use](other, x.shape)
        return x if self.last else (x, x * 0.5)


USES = {
    "elementwise": lambda other, shape: other,
    "sum": lambda other, shape: other.sum(),
    "transposed": lambda other, shape: (other.t().reshape(-1) * 0.5).reshape(shape),
}


def run(rank, name, use):
    torch.manual_seed(0)
    n = num_stages(name)
    modules = [Stage(use, last=s == n - 1) for s in range(n)]
    schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
    x = torch.randn(2 * M, 4)
    try:
        schedule.step(*((x,) if 0 in owned else ()), **({"target": x} if n - 1 in owned else {}))
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return "no error"


def worker(rank, folder, name, use):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=10),
    )
    Path(folder, f"{rank}.txt").write_text(run(rank, name, use))
    os._exit(0)


def main():
    for name in NAMES:
        for use in USES:
            with tempfile.TemporaryDirectory() as folder:
                processes = [
                    mp.get_context("spawn").Process(target=worker, args=(r, folder, name, use))
                    for r in range(WORLD)
                ]
                for process in processes:
                    process.start()
                for process in processes:
                    process.join(timeout=60)
                    process.kill()
                paths = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
                if not all(path.exists() for path in paths):
                    sys.exit(f"inconclusive: {name}, {use}: a rank gave no result")
                told = [path.read_text() for path in paths]
                # whichever rank fails first closes its connections, and the other one may only see that
                actual = next((text for text in told if "contiguous" in text), told[0])
                print(f"{name}, {use}: expected: no error; actual: {actual}")


if __name__ == "__main__":
    main()
