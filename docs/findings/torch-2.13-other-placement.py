"""A schedule that is given its stages in another placement does not refuse: every rank waits for the others.

What: stages laid out in a V under a schedule that lays them out as a loop, or the other way round, on three ranks.
  Here shapes are declared (input_args and output_args), and the first step hangs: all ranks wait until the group's
  time-out, 5 seconds in this script and half an hour by default. No error names the placement.
Where: torch 2.13.0, distributed/pipelining/schedules.py, PipelineScheduleMulti.__init__ (stage_index_to_group_rank).
Why: every schedule computes which rank owns which stage from its own rule and never looks at the stages it was
  given, so the ranks wait for messages that no rank sends.
Otherwise: on two ranks with declared shapes, one raises a bare KeyError and the other waits. Where shapes are
  inferred, it is chance: a receive of one int64 that meets an int32 leaves its upper half as the memory was, so that
  the same case hangs, asks for some 90 terabytes or aborts (SIGABRT) from run to run; it never ends well.
Requirement: ERR-16.
Schedules: Interleaved1F1B, LoopedBFS, InterleavedZeroBubble (given a V); ZBVZeroBubble, DualPipeV (given a loop).
Possible fix: in __init__ compare stage_index_to_group_rank[stage.stage_index] with the rank for every stage that
  was passed, and raise ValueError. The middle one of an odd number of ranks has the same stages in a loop and in a V
  and cannot notice; all others do.
"""

import os
import re
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

WORLD = 3
M = 2 * WORLD
SECONDS = 5
SCHEDULES = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


def build(name, rank, group, modules, **options):
    """This rank's schedule object, and the indices of its stages."""
    n = len(modules)
    v_shaped = name not in ("ZBVZeroBubble", "DualPipeV")  # the placement that is not the schedule's
    owned = [rank, n - 1 - rank] if v_shaped else list(range(rank, n, WORLD))
    inside = torch.empty(2, 3, device="meta", requires_grad=True)
    given = torch.empty(2, 3, device="meta")
    stages = [
        PipelineStage(
            modules[s],
            s,
            n,
            torch.device("cpu"),
            input_args=inside if s else given,
            output_args=inside,
            group=group,
        )
        for s in owned
    ]
    return get_schedule_class(name)(stages, M, **options), owned


def model(n):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(n)]


def step(name, rank, group):
    """How the first step on misplaced stages ends."""
    modules = model(2 * WORLD)
    begun = time.monotonic()
    try:
        schedule, owned = build(name, rank, group, modules, loss_fn=nn.functional.mse_loss)
        x = torch.randn(2 * M, 3)
        args = (x,) if 0 in owned else ()
        target = {"target": x} if len(modules) - 1 in owned else {}
        schedule.step(*args, **target)
    except Exception as error:
        waited = time.monotonic() - begun > SECONDS - 1
        placed = re.search("placement|stage.* rank|rank.* stage", str(error))
        text = "waited until the time-out" if waited else f"raised {type(error).__name__}"
        return f"{text}, and its message names the placement" if placed else text
    return "ended without an error"


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=200),
    )
    lines = []
    for name in SCHEDULES:
        group = dist.new_group(timeout=timedelta(seconds=SECONDS))
        dist.barrier()
        expected = "any end" if rank == WORLD // 2 else "an error about the placement"
        lines.append(f"{name}, rank {rank}: expected {expected}, actual: {step(name, rank, group)}")
        dist.barrier()  # a rank that goes on would end the others' wait
    Path(folder, f"{rank}.txt").write_text("".join(f"{line}\n" for line in lines))
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=250)
            process.kill()
        for rank in range(WORLD):
            path = Path(folder, f"{rank}.txt")
            if not path.exists():
                sys.exit(f"inconclusive: a rank gave no result ({path.name})")
            print(path.read_text(), end="")


if __name__ == "__main__":
    main()
