"""A parameter shared by two stages of one rank is divided by m twice.

What: a V schedule puts the first and the last stage on one rank, which invites to tie embedding and head.
  Each stage divides the shared p.grad by m when it is done.
Where: torch 2.13.0, distributed/pipelining/stage.py, _PipelineStageBase.scale_grads, line 779, once per stage.
Why: scale_grads works on self.submod.parameters(), without knowing what another stage scaled.
Requirement: none yet (FWD-13 speaks of sharing inside a stage; torch does not promise sharing between stages).
Schedules: all with several stages on a rank, for m >= 2 and scale_grads=True; not with scale_grads=False.
Possible fix: scale the loss by 1/m instead of gradients.
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


def reference(modules, x, target, loss_fn):
    """The same loss without a pipeline: mean over the microbatches."""
    for x_mb, target_mb in zip(x.tensor_split(M), target.tensor_split(M), strict=True):
        for module in modules:
            x_mb = module(x_mb)
        (loss_fn(x_mb, target_mb) / M).backward()


def model(n):
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(n)]
    modules[-1][0].weight = modules[0][0].weight
    return modules


def run(rank):
    lines = []
    for name in ("ZBVZeroBubble", "DualPipeV"):
        for scale in (True, False):
            modules, same = model(2 * WORLD), model(2 * WORLD)
            schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss, scale_grads=scale)
            x = torch.randn(2 * M, 3)
            args = (x,) if 0 in owned else ()
            target = {"target": x} if len(modules) - 1 in owned else {}
            schedule.step(*args, **target)
            reference(same, x, x, nn.functional.mse_loss)
            expected = float(same[0][0].weight.grad.norm()) * (1 if scale else M)
            if 0 in owned:
                actual = float(modules[0][0].weight.grad.norm())
                lines.append(
                    f"{name}, scale_grads={scale}: norm of the shared gradient:"
                    f" expected {expected:.4f}, actual {actual:.4f}"
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
