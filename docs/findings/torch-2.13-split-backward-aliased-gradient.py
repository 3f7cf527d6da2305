"""Split backward lets two parameters share one p.grad, and then adds to it in place.

What: two parameters with exactly the shape of the activation that are added to it (learned positions, shape
  (1, d), and microbatches of one sample). Both get the same tensor as p.grad; every later microbatch's gradient
  is added into it twice. Wrong from the second microbatch on.
  The same tensor is also the gradient on its way to the previous stage (isend is waited for at the end of the
  step): with two ranks and one such parameter, earlier stages' gradients are wrong in some runs, when the
  receiver is late. This script shows only what happens every time, on one rank.
Where: torch 2.13.0, distributed/pipelining/_backward.py, stage_backward_weight, lines 337 and 339
  (weight.grad = dw; weight.grad += dw); line 259 hands the same tensor out as the input's gradient.
Why: torch.autograd.grad returns the same tensor for several inputs when it can; AccumulateGrad clones in that
  case, these lines do not.
Requirement: SPL-1, TRN-1 (the race also LIF-5).
Schedules: InterleavedZeroBubble, ZBVZeroBubble; DualPipeV with two ranks; every stage but the first.
Possible fix: weight.grad = dw.clone() when dw shares memory with anything else, or add out of place.
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

WORLD = 1
M = 4
SCHEDULES = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble")


def build(name, rank, modules, **options):
    """This rank's schedule object, and the indices of its stages."""
    n = len(modules)
    v_shaped = name in ("ZBVZeroBubble", "DualPipeV")
    owned = [rank, n - 1 - rank] if v_shaped else list(range(rank, n, WORLD))
    stages = [PipelineStage(modules[s], s, n, torch.device("cpu")) for s in owned]
    cls = get_schedule_class(name)
    return cls(stages if issubclass(cls, PipelineScheduleMulti) else stages[0], M, **options), owned


def num_stages(name):
    return WORLD if name in ("GPipe", "1F1B") else 2 * WORLD


def reference(modules, x, target, loss_fn):
    """The same loss without a pipeline: mean over the microbatches."""
    for x_mb, target_mb in zip(x.tensor_split(M), target.tensor_split(M), strict=True):
        for module in modules:
            x_mb = module(x_mb)
        (loss_fn(x_mb, target_mb) / M).backward()


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.a, self.b = (nn.Parameter(torch.randn(1, 3)) for _ in range(2))

    def forward(self, x):
        return torch.tanh(self.linear(x)) + self.a + self.b


def run(rank):
    lines = []
    for name in SCHEDULES:
        torch.manual_seed(0)
        modules = [Positions(), Positions()]
        torch.manual_seed(0)
        same = [Positions(), Positions()]
        schedule, _ = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
        x = torch.randn(M, 3)
        schedule.step(x, target=x)
        reference(same, x, x, nn.functional.mse_loss)
        actual, expected = modules[1], same[1]
        lines += [
            f"{name}: norm of a.grad in stage 1: expected {float(expected.a.grad.norm()):.4f},"
            f" actual {float(actual.a.grad.norm()):.4f}",
            f"{name}: a.grad and b.grad share memory: expected False,"
            f" actual {actual.a.grad.data_ptr() == actual.b.grad.data_ptr()}",
        ]
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
