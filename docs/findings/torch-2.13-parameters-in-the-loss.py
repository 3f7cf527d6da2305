"""A loss function that uses a parameter of the last stage ends split backwards in an error; its own are never right.

What: a fused output layer and cross-entropy takes hidden states and the layer's weight, so the weight is a parameter of
  the last stage that the loss function uses and the stage's forward does not. Under schedules with full backwards that
  is right; under those with split backwards the weight part of the first microbatch raises.
  Where the parameters belong to the loss function itself (a learned temperature, an output layer of its own), nothing
  is raised: schedules with full backwards leave their gradients m times too large, because only the stages' parameters
  are divided by the number of microbatches, and split backwards leave them without a gradient.
Where: torch 2.13.0, distributed/pipelining/_backward.py: stage_backward_input detaches the stage's outputs in place
  (line 265), and stage_backward_weight goes through them again; stage.py, scale_grads.
Why: the graph between the last stage's output and the loss is taken for a part that leads to no parameter.
Requirement: TRN-29 (parameters of the last stage).
Schedules: InterleavedZeroBubble, ZBVZeroBubble, and DualPipeV on two ranks; of the loss function's own parameters, all.
Possible fix: begin the search for parameters at the loss, and detach outputs only after the weight part.
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
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble")


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


class Middle(nn.Module):
    """A stage; the last one also has the output layer, which its forward does not use."""

    def __init__(self, last):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.head = nn.Linear(3, 3, bias=False) if last else None

    def forward(self, x):
        return torch.tanh(self.linear(x))


def through(head):
    """A loss function that applies `head` to what it is given."""
    return lambda output, target: nn.functional.mse_loss(head(output), target)


def made(n):
    torch.manual_seed(0)
    return [Middle(s == n - 1) for s in range(n)], nn.Linear(3, 3, bias=False)


def gradients(name, rank, own):
    """Norms of the head's gradient, expected and actual; `own`: the head is the loss function's own."""
    n = num_stages(name)
    (modules, head), (same, same_head) = made(n), made(n)
    x = torch.randn(2 * M, 3, generator=torch.Generator().manual_seed(1))
    expected, actual = (same_head, head) if own else (same[-1].head, modules[-1].head)
    reference(same, x, x, through(expected))
    schedule, _ = build(name, rank, modules, loss_fn=through(actual))
    norm = f"{float(expected.weight.grad.norm()):.4f}"
    try:
        schedule.step(x, target=x)
    except RuntimeError as error:
        return norm, str(error).partition(",")[0]
    found = actual.weight.grad
    return norm, "None" if found is None else f"{float(found.norm()):.4f}"


def run(rank):
    lines = []
    for own, whose in ((False, "the last stage's head"), (True, "the loss function's own head")):
        for name in SCHEDULES:
            expected, actual = gradients(name, rank, own)
            lines.append(f"{whose}, {name}: norm of the gradient: expected {expected}, actual {actual}")
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
