"""Split backward drops the gradient of a parameter whose output does not depend on the stage's input.

What: a stage returns its activations and a learned tensor for the next stage (a gate, a table). Under a
  schedule that splits the backward the parameter behind it gets no gradient (None). Nothing is frozen.
Where: torch 2.13.0, distributed/pipelining/_backward.py, get_param_groups, lines 105-125.
Why: the same as for a frozen first stage: a parameter that does not meet an input's path is in no group.
Requirement: SPL-1, TRN-1.
Schedules: InterleavedZeroBubble, ZBVZeroBubble (None), DualPipeV (a part of the gradient); every stage but
  the first and the last.
Possible fix: see frozen-first-stage.
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


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.gate = nn.Parameter(torch.randn(1, 3))

    def forward(self, x):
        return torch.tanh(self.linear(x)), torch.sigmoid(self.gate)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, gate):
        return self.linear(x) * gate


def model(n):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(n - 2)] + [Gate(), Gated()]


def run(rank):
    lines = []
    for name in ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
        modules, same = model(2 * WORLD), model(2 * WORLD)
        schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
        x = torch.randn(2 * M, 3)
        args = (x,) if 0 in owned else ()
        target = {"target": x} if len(modules) - 1 in owned else {}
        schedule.step(*args, **target)
        for x_mb in x.tensor_split(M):
            output = same[-1](*nn.Sequential(*same[:-1])(x_mb))
            (nn.functional.mse_loss(output, x_mb) / M).backward()
        grads = {s: modules[s].gate.grad for s in owned if s == len(modules) - 2}
        found = gather({s: None if g is None else round(float(g.norm()), 4) for s, g in grads.items()})
        expected = round(float(same[-2].gate.grad.norm()), 4)
        if rank == 0:
            lines.append(
                f"{name}: norm of the gate's gradient: expected {expected}, actual {found.popitem()[1]}"
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
