"""A schedule that is given its stages in another placement does not refuse: it hangs, crashes or allocates terabytes.

What: stages laid out in a V under a schedule that lays them out as a loop, or the other way round. The first step
  hangs, or a rank dies (SIGABRT), or one raises about memory of some 90 terabytes while the other is left with a
  closed connection. No error speaks of the placement.
Where: torch 2.13.0, distributed/pipelining/schedules.py, PipelineScheduleMulti.__init__ (stage_index_to_group_rank).
Why: every schedule computes which rank owns which stage from its own rule and never looks at the stages it was
  given, so two ranks wait for each other's messages, or read each other's tensors as lengths of pickles.
Chance: a receive of one int64 that meets an int32 leaves its upper half as the memory was, so the same case hangs,
  asks for another number of terabytes or aborts from run to run; it never ends well.
Requirement: SCH-7.
Schedules: Interleaved1F1B, LoopedBFS, InterleavedZeroBubble (given a V); ZBVZeroBubble, DualPipeV (given a loop).
Possible fix: in __init__ compare stage_index_to_group_rank[stage.stage_index] with the rank for every stage that
  was passed, and raise ValueError; every rank has at least one misplaced stage, so all of them would.
"""

import os
import re
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
SCHEDULES = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


def build(name, rank, modules, **options):
    """This rank's schedule object, and the indices of its stages."""
    n = len(modules)
    v_shaped = name not in ("ZBVZeroBubble", "DualPipeV")  # the placement that is not the schedule's
    owned = [rank, n - 1 - rank] if v_shaped else list(range(rank, n, WORLD))
    device = torch.device("cpu")
    stages = [PipelineStage(modules[s], s, n, device) for s in owned]
    cls = get_schedule_class(name)
    return cls(stages if issubclass(cls, PipelineScheduleMulti) else stages[0], M, **options), owned


def model(n):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(n)]


def step(name, rank):
    """What the first step on misplaced stages raises, in a few words."""
    modules = model(2 * WORLD)
    schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
    x = torch.randn(2 * M, 3)
    args = (x,) if 0 in owned else ()
    target = {"target": x} if len(modules) - 1 in owned else {}
    schedule.step(*args, **target)


def worker(rank, name, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=10),
    )
    try:
        step(name, rank)
        text = "no error"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    Path(folder, f"{rank}.txt").write_text(text)
    os._exit(0)


def main():
    for name in SCHEDULES:
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                mp.get_context("spawn").Process(target=worker, args=(r, name, folder)) for r in range(WORLD)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=60)
                process.kill()
            told = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
            texts = [path.read_text() if path.exists() else "" for path in told]
            refused = all(re.search("placement|stage.* rank|rank.* stage", text) for text in texts)
            print(
                f"{name}: every rank refuses, in words about the placement: expected True, actual {refused}"
            )


if __name__ == "__main__":
    main()
