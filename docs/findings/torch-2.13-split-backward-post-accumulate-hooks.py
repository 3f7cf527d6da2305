"""Split backward never calls post-accumulate-grad hooks.

What: hooks of Tensor.register_post_accumulate_grad_hook (an optimizer inside the backward, gradient
  offloading, data parallel reduction) run m times under other schedules and 0 times here.
Where: torch 2.13.0, distributed/pipelining/_backward.py, stage_backward_weight, lines 325-339: gradients are
  computed by torch.autograd.grad and stored by hand, AccumulateGrad never runs.
Requirement: FWD-17.
Schedules: InterleavedZeroBubble, ZBVZeroBubble (0 calls), DualPipeV (some); every stage but the first.
Known: https://github.com/pytorch/pytorch/issues/144530 (open; the same cause, seen with DDP).
Possible fix: torch.autograd.backward(..., inputs=the group's parameters) instead of torch.autograd.grad.
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


def gather(result):
    """Every rank's dictionary, merged and sorted."""
    parts = [None] * WORLD
    dist.all_gather_object(parts, result)
    return dict(sorted((key, value) for part in parts for key, value in part.items()))


def run(rank):
    lines = []
    for name in SCHEDULES:
        torch.manual_seed(0)
        modules = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(num_stages(name))]
        schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
        calls = dict.fromkeys(owned, 0)
        for s in owned:
            weight = modules[s][0].weight
            weight.register_post_accumulate_grad_hook(lambda _, s=s, c=calls: c.__setitem__(s, c[s] + 1))
        x = torch.randn(2 * M, 3)
        args = (x,) if 0 in owned else ()
        target = {"target": x} if len(modules) - 1 in owned else {}
        schedule.step(*args, **target)
        actual = gather(calls)
        if rank == 0:
            lines.append(f"{name}: hook calls expected {M}, actual by stage {actual}")
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
