"""Split backward applies a tensor hook twice.

What: a hook on a linear layer's output that doubles the gradient (loss scaling, clipping) doubles the layer's
  weight gradient twice; the hook runs 2 m times instead of m.
Where: torch 2.13.0, distributed/pipelining/_backward.py, stage_backward_input, line 242 (the gradient is
  captured by a node pre-hook, which runs after the tensor's hooks), and stage_backward_weight, line 329 (the
  captured gradient enters the same node again, and the tensor's hooks run again).
Why: as above; the input gradients, computed once, are right, only weight gradients are not.
Requirement: FWD-17, SPL-1.
Schedules: InterleavedZeroBubble, ZBVZeroBubble, DualPipeV; every stage but the first.
Possible fix: start the weight pass behind the tensor hooks: register the pre-hook that hands in the saved
  gradient (lines 315-319) for every intermediate, not only for groups of several.
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


def gather(result):
    """Every rank's dictionary, merged and sorted."""
    parts = [None] * WORLD
    dist.all_gather_object(parts, result)
    return dict(sorted((key, value) for part in parts for key, value in part.items()))


class Doubling(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x):
        h = self.linear(x)
        if h.requires_grad:
            h.register_hook(self.double)
        return torch.tanh(h)

    def double(self, grad):
        self.calls += 1
        return 2 * grad


def run(rank):
    lines = []
    for name in SCHEDULES:
        torch.manual_seed(0)
        modules = [Doubling() for _ in range(num_stages(name))]
        torch.manual_seed(0)
        same = [Doubling() for _ in range(num_stages(name))]
        schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
        x = torch.randn(2 * M, 3)
        args = (x,) if 0 in owned else ()
        target = {"target": x} if len(modules) - 1 in owned else {}
        schedule.step(*args, **target)  # the first step's dry run calls hooks too: count the second
        for s in owned:
            modules[s].zero_grad()
            modules[s].calls = 0
        schedule.step(*args, **target)
        reference(same, x, x, nn.functional.mse_loss)
        weights = {s: (modules[s].linear.weight.grad, same[s].linear.weight.grad) for s in owned}
        ratio = gather({s: round(float(a.norm() / e.norm()), 3) for s, (a, e) in weights.items()})
        calls = gather({s: modules[s].calls for s in owned})
        if rank == 0:
            lines.append(f"{name}: weight gradient actual/expected by stage {ratio}")
            lines.append(f"{name}: hook calls expected {M}, actual by stage {calls}")
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
