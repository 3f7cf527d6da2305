"""The first microbatch of the first step decides for good whether a stage's output needs a gradient.

What: a first stage that some microbatches pass by, as texts pass by an encoder of images, returns for them what needs
  no gradient. If the first microbatch of the first step is one of them, the next stage never sends a gradient back, and
  the first microbatch that goes through the encoder raises. If another one is, everything is right.
Where: torch 2.13.0, distributed/pipelining/stage.py: the metadata of the first microbatch, from which the receive
  buffers are made, and gradients are sent or not.
Why: shape inference runs once, and what it finds of requires_grad is kept for all microbatches and steps.
Requirement: TRN-6.
Schedules: all that train.
Possible fix: until 2.11 every floating-point boundary tensor had its gradient sent, zeros if nothing depends on it.
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
RUNS = (
    ("GPipe", 1),
    ("1F1B", 1),
    ("GPipe", 0),
)  # the microbatch that passes by; the error is last


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


class Encoder(nn.Linear):
    """Only microbatches whose first value is positive go through it."""

    def forward(self, x):
        return super().forward(x) if float(x[0, 0]) > 0 else x * 0.75


def batch(passing):
    """Samples of which one microbatch passes by the encoder: the first or the second."""
    x = torch.randn(2 * M, 3, generator=torch.Generator().manual_seed(1))
    x[:, 0] = x[:, 0].abs()
    x[2 * passing : 2 * passing + 2, 0] *= -1
    return x


def made(n):
    torch.manual_seed(0)
    return [Encoder(3, 3), *(nn.Linear(3, 3) for _ in range(n - 1))]


def gradient(name, rank, passing):
    """Norm of the encoder's gradient, expected and actual; None on the rank that does not have it."""
    n = num_stages(name)
    modules, same, x = made(n), made(n), batch(passing)
    reference(same, x, x, nn.functional.mse_loss)
    schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
    try:
        schedule.step(*([x] if 0 in owned else []), **({"target": x} if n - 1 in owned else {}))
    except RuntimeError as error:
        actual = str(error.__cause__ or error).strip().partition("\n")[0]
    else:
        gradient = modules[0].weight.grad
        actual = "None" if gradient is None else f"{float(gradient.norm()):.4f}"
    return f"expected {float(same[0].weight.grad.norm()):.4f}, actual {actual}" if 0 in owned else None


def run(rank):
    lines = []
    for name, passing in RUNS:
        found = gradient(name, rank, passing)
        if found is not None:
            which = ("first", "second")[passing]
            lines.append(f"{name}, the {which} microbatch passes by: norm of the encoder's gradient: {found}")
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
