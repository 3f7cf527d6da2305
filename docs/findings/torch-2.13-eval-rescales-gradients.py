"""eval() divides the gradients that are there by m.

What: train a step, evaluate before optimizer.step() (or between accumulation steps): every gradient is m
  times too small. Nothing was differentiated.
Where: torch 2.13.0, distributed/pipelining/schedules.py: ScheduleGPipe and Schedule1F1B call
  perform_reduce_grad at the end of _step_microbatches (lines 960 and 1177) and the schedule runtime runs
  REDUCE_GRAD (line 2607) whether or not the stage has a backward; stage.py, perform_reduce_grad, line 1195.
Why: perform_reduce_grad does not look at has_backward, as backward_one_chunk does.
Requirement: LIF-1.
Schedules: GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, for m >= 2 and scale_grads=True;
  not ForwardOnly; ZBVZeroBubble and DualPipeV raise in eval() before they get there.
Possible fix: return from perform_reduce_grad when not self.has_backward.
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
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")


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
        modules = [nn.Linear(3, 3) for _ in range(num_stages(name))]
        schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
        x = torch.randn(2 * M, 3)
        args = (x,) if 0 in owned else ()
        target = {"target": x} if len(modules) - 1 in owned else {}
        for s in owned:
            modules[s].weight.grad = torch.ones(3, 3)
        with torch.no_grad():
            schedule.eval(*args, **target)
        actual = gather({s: float(modules[s].weight.grad[0, 0]) for s in owned})
        if rank == 0:
            lines.append(f"{name}: gradient of 1.0 after eval(): expected 1.0, actual by stage {actual}")
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
