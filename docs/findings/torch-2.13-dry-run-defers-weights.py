"""The dry run before the first step leaves its trace in a user's deferred weight gradients.

What: a linear map whose backward computes the input's gradient only and puts what the weight's gradient needs into
  a queue; dw_builder takes the queue and returns the function that adds the gradient (how fused kernels defer it).
  In the first step the function of the first microbatch finds one entry too many, on every stage whose input needs
  a gradient. The entry is made of uninitialised memory: the gradient is wrong whenever that is not zero.
Where: torch 2.13.0, distributed/pipelining/stage.py, _backward_metadata_inference (line 1976), _compute_input_grads
  (line 1830).
Why: shape inference runs the stage's real backward once before the first step, and again after every change
  between step() and eval(), and does not call dw_builder after it.
Requirement: SPL-3.
Schedules: all, unless every stage has input_args and output_args. Their gradients need not be declared, except for
  DTensors.
Possible fix: infer shapes on meta tensors, or call dw_builder after the dry run and drop what it returns.
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
SCHEDULES = (
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)


def build(name, rank, modules, **options):
    """This rank's schedule object, and the indices of its stages."""
    n = len(modules)
    v_shaped = name in ("ZBVZeroBubble", "DualPipeV")
    owned = [rank, n - 1 - rank] if v_shaped else list(range(rank, n, WORLD))
    device = torch.device("cpu")
    stages = [PipelineStage(modules[s], s, n, device, dw_builder=modules[s].build) for s in owned]
    cls = get_schedule_class(name)
    return cls(stages if issubclass(cls, PipelineScheduleMulti) else stages[0], M, **options), owned


def num_stages(name):
    return WORLD if name in ("GPipe", "1F1B") else 2 * WORLD


def gather(result):
    """Every rank's dictionary, merged and sorted."""
    parts = [None] * WORLD
    dist.all_gather_object(parts, result)
    return dict(sorted((key, value) for part in parts for key, value in part.items()))


class Deferred(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, queue):
        ctx.save_for_backward(x, weight)
        ctx.queue = queue
        return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        ctx.queue.append((x, gradient))
        return gradient @ weight, None, None


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3) / 2)
        self.queue, self.taken = [], []

    def forward(self, x):
        return torch.tanh(Deferred.apply(x, self.weight, self.queue))

    def build(self):
        entries = list(self.queue)
        self.queue.clear()
        self.taken.append(len(entries))

        def add():
            with torch.no_grad():
                for x, gradient in entries:
                    found = gradient.t() @ x
                    self.weight.grad = found if self.weight.grad is None else self.weight.grad + found

        return add


def model(n):
    torch.manual_seed(0)
    return [Linear() for _ in range(n)]


def run(rank):
    lines = []
    for name in SCHEDULES:
        modules = model(num_stages(name))
        schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
        x = torch.randn(2 * M, 3)
        args = (x,) if 0 in owned else ()
        target = {"target": x} if len(modules) - 1 in owned else {}
        schedule.step(*args, **target)
        entries = gather({s: modules[s].taken for s in owned})
        if rank == 0:
            lines.append(f"{name}: entries per microbatch: expected 1 each, actual by stage {entries}")
    return lines


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=20),
    )
    lines = run(rank)
    Path(folder, f"{rank}.txt").write_text("".join(f"{line}\n" for line in lines))
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
