"""Split backward takes gradients as autograd returns them: wrong for two parameters that are added, an error for a sum.

What: a weight that is the sum of two parameters, as a base and a trained difference to it, gives both the same tensor
  as p.grad, into which every later microbatch's gradient is added twice: wrong from the second microbatch on, without
  an error. A parameter whose rows are summed up has an expanded gradient, to which nothing can be added in place: the
  second microbatch raises.
Where: torch 2.13.0, distributed/pipelining/_backward.py, stage_backward_weight, lines 337 and 339
  (weight.grad = dw; weight.grad += dw).
Why: torch.autograd.grad returns the same tensor for several inputs when it can, and expanded ones as they are;
  AccumulateGrad clones in both cases, these lines do not. The cause is that of finding 13, which needs a parameter of
  exactly the activation's shape; these do not.
Requirement: SPL-1.
Schedules: InterleavedZeroBubble, ZBVZeroBubble; DualPipeV with two ranks; every stage but the first.
Possible fix: accumulate as autograd does, weight.grad = dw.clone() unless dw is dense and nothing else has it.
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


class Added(nn.Module):
    """The weight is the sum of two parameters."""

    def __init__(self):
        super().__init__()
        self.base, self.delta = (nn.Parameter(torch.randn(3, 3)) for _ in range(2))

    def forward(self, x):
        return torch.tanh(x @ (self.base + self.delta))


class Summed(nn.Module):
    """The sum of four learned rows is added to every sample."""

    def __init__(self):
        super().__init__()
        self.linear, self.rows = nn.Linear(3, 3), nn.Parameter(torch.randn(4, 3))

    def forward(self, x):
        return torch.tanh(self.linear(x) + self.rows.sum(0))


def gradient(name, rank, kind, parameter):
    torch.manual_seed(0)
    modules = [kind(), kind()]
    torch.manual_seed(0)
    same = [kind(), kind()]
    x = torch.randn(M, 3)
    reference(same, x, x, nn.functional.mse_loss)
    expected = float(same[1].get_parameter(parameter).grad.norm())
    schedule, _ = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
    try:
        schedule.step(x, target=x)
    except RuntimeError as error:
        return expected, str(error).partition(".")[0]
    return expected, f"{float(modules[1].get_parameter(parameter).grad.norm()):.4f}"


def run(rank):
    lines = []
    for name in SCHEDULES:
        for kind, parameter in ((Added, "delta"), (Summed, "rows")):
            expected, actual = gradient(name, rank, kind, parameter)
            lines.append(
                f"{name}: norm of the gradient of {parameter} in stage 1: expected {expected:.4f}, actual {actual}"
            )
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
