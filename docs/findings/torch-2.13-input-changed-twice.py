"""Shape inference changes the user's data where a stage or the loss function works in place.

What: a first stage that changes its input or a keyword argument in place (x.div_(255)), or a loss function that
  changes its target in place, changes the first microbatch's data twice in the first step, and in the step after each
  eval(); an input and a keyword argument are also changed twice in eval(), where it follows step(). The first
  microbatch's output and loss, and all gradients, are wrong; nothing is raised. With declared shapes all is right; in
  2.11 it is, too, but for the keyword argument in the first step.
Where: torch 2.13.0, distributed/pipelining/stage.py, _to_tensor, line 1852, called for the first stage's inputs (line
  1913), for keyword arguments (line 1935) and for the target (line 2014).
Why: shape inference runs the module and the loss function once more on the first microbatch. What they are given is
  arg.detach(), a new tensor on the same memory, so that what is done in place is done to the user's data.
Requirement: FWD-34.
Schedules: all, unless every stage has input_args and output_args. Which runs are wrong is as above where the schedule
  can evaluate.
Possible fix: give shape inference a copy (arg.detach().clone()), or empty tensors of the same shape.
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

WORLD, M = 2, 2
SCHEDULES = ("GPipe", "1F1B", "InterleavedZeroBubble")
CHANGED = ("input", "keyword argument", "target")
RUNS = ("step", "step", "eval", "step")


class Layer(nn.Linear):
    """A linear map that may change what it is given in place, which does not disturb its own backward."""

    is_first, changes = False, None

    def forward(self, x, shift=None):
        if self.is_first and self.changes == "input":
            x.mul_(2)
        if self.is_first and self.changes == "keyword argument":
            shift.mul_(2)
        out = super().forward(x.tanh())
        return out + shift if self.is_first else out  # all stages of a rank are given its keyword arguments


def model(n, changes):
    torch.manual_seed(0)
    modules = [Layer(3, 3) for _ in range(n)]
    modules[0].is_first, modules[0].changes = True, changes
    return modules


def loss_function(changes):
    def loss(output, target):
        return (output - (target.sub_(1) if changes == "target" else target)).square().mean()

    return loss


def batch():
    """Always the same values, in new memory."""
    torch.manual_seed(1)
    return torch.randn(2 * M, 3), torch.randn(2 * M, 3), torch.randn(2 * M, 3)


def expected(n, changes):
    """The losses without a pipeline, microbatch by microbatch."""
    first, *others = model(n, changes)
    found = []
    for x, shift, y in zip(*(tensor.chunk(M) for tensor in batch()), strict=True):
        out = first(x, shift)
        for module in others:
            out = module(out)
        found.append(round(float(loss_function(changes)(out, y)), 3))
    return found


def run(rank):
    lines = []
    for changes in CHANGED:
        if rank == WORLD - 1:
            lines.append(
                f"{changes} changed in place: losses of {M} microbatches in step(), step(), eval(), step()"
            )
        for name in SCHEDULES:
            cls = get_schedule_class(name)
            several = issubclass(cls, PipelineScheduleMulti)
            n = 2 * WORLD if several else WORLD
            right = expected(n, changes)
            for declared in (True, False):
                modules = model(n, changes)
                owned = list(range(rank, n, WORLD))
                stages = []
                for s in owned:
                    examples = {}
                    if declared:
                        examples["input_args"] = torch.zeros(2, 3, requires_grad=s > 0)
                        examples["output_args"] = torch.zeros(2, 3, requires_grad=True)
                    stages.append(PipelineStage(modules[s], s, n, torch.device("cpu"), **examples))
                schedule = cls(stages if several else stages[0], M, loss_fn=loss_function(changes))
                seen = []
                for how in RUNS:
                    x, shift, y = batch()
                    losses = []
                    args, keywords = ((x,), {"shift": shift}) if 0 in owned else ((), {})
                    target = {"target": y} if n - 1 in owned else {}
                    getattr(schedule, how)(*args, **keywords, **target, losses=losses)
                    seen.append([round(float(loss), 3) for loss in losses])
                if n - 1 in owned:
                    shapes = "declared" if declared else "inferred"
                    told = ", ".join("as expected" if found == right else str(found) for found in seen)
                    lines.append(f"  {name}, {shapes} shapes: expected {right}, actual {told}")
    return lines


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    lines = run(rank)
    dist.barrier()
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
