"""Split backward gives no gradient to a keyword argument of a later stage.

What: a leaf tensor that requires a gradient, passed to a later stage as a keyword argument, gets its .grad
  under every other schedule; here it stays None.
Where: torch 2.13.0, distributed/pipelining/_backward.py, stage_backward_input, line 259 (inp.grad = dinput):
  the gradient is stored on the microbatch's slice, a non-leaf view, and goes no further.
Why: torch.autograd.grad stops at the slice; torch.autograd.backward would go on to the leaf.
Requirement: FWD-9, TRN-7 (in spirit: TRN-7 speaks of the first stage's inputs).
Schedules: InterleavedZeroBubble, ZBVZeroBubble; every stage but the first. DualPipeV passes on those of the
  microbatches whose backward it does not split.
Possible fix: torch.autograd.backward with inputs=, or differentiate with respect to the slices' leaves.
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


class Conditioned(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, condition=None):
        return torch.tanh(self.linear(x) + (0 if condition is None else condition))


def run(rank):
    lines = []
    for name in SCHEDULES:
        torch.manual_seed(0)
        modules = [Conditioned() for _ in range(num_stages(name))]
        schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
        x, condition = torch.randn(2 * M, 3), torch.randn(2 * M, 3, requires_grad=True)
        args = (x,) if 0 in owned else ()
        target = {"target": x} if len(modules) - 1 in owned else {}
        keyword = {"condition": condition} if rank == 1 else {}  # rank 1 holds no first stage
        schedule.step(*args, **target, **keyword)
        grad = condition.grad
        rows = 0 if grad is None else int(grad.abs().sum(1).count_nonzero())
        if rank == 1:
            lines.append(
                f"{name}: rows of the keyword argument with a gradient: expected {2 * M}, actual {rows}"
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
