"""A tensor hook on a stage's input lives on in later steps.

What: a hook that a stage registers on its input in a forward runs again in every later step: with m = 4, 4 hooks run
  in the first step (one more in the dry run), 8 in the second, 12, 16. One that scales by 1.25 scales the gradients of
  the stages before by 1.25, 1.25**2, 1.25**3 too much; the loss is exact.
Where: torch 2.13.0, distributed/pipelining/stage.py, _retrieve_recv_activations, line 685: the receive buffer of a
  microbatch, which serves every step, is handed to the module as it is.
Why: hooks belong to the tensor object. A neighbour on the same rank gets a new tensor (set_local_fwd_input), so that
  the stage after the turn of a V is right.
Requirement: FWD-26.
Schedules: all; every stage whose input comes from another rank.
Known: https://github.com/pytorch/pytorch/issues/185331 (open; the counts), and
  https://github.com/pytorch/pytorch/pull/185355 (open), which clones the buffer.
Possible fix: hand the module a new leaf that shares the buffer's memory: buffer.detach().requires_grad_().
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
STEPS = 4
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


class Scaling(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x):
        if x.requires_grad:
            x.register_hook(self.scale)
        return torch.tanh(self.linear(x))

    def scale(self, grad):
        self.calls += 1
        return 1.25 * grad


def run(rank):
    lines = []
    for name in SCHEDULES:
        torch.manual_seed(0)
        modules = [Scaling() for _ in range(num_stages(name))]
        torch.manual_seed(0)
        same = [Scaling() for _ in range(num_stages(name))]
        schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
        x = torch.randn(2 * M, 3)
        args = (x,) if 0 in owned else ()
        target = {"target": x} if len(modules) - 1 in owned else {}
        calls, ratios = {s: [] for s in owned}, {s: [] for s in owned}
        for _ in range(STEPS):
            for module in (*modules, *same):
                module.zero_grad()
                module.calls = 0
            schedule.step(*args, **target)
            reference(same, x, x, nn.functional.mse_loss)
            for s in owned:
                mine, right = (module.linear.weight.grad for module in (modules[s], same[s]))
                calls[s].append(modules[s].calls)
                ratios[s].append(round(float(mine.norm() / right.norm()), 3))
        calls, ratios = gather(calls), gather(ratios)
        if rank == 0:
            lines.append(f"{name}: hook calls in {STEPS} steps, expected {M} each but for stage 0: {calls}")
            lines.append(f"{name}: weight gradient actual/expected by stage {ratios}")
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
