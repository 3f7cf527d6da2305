"""eval() without a target raises on the last rank only when the schedule has a loss function.

What: eval(x) documents target as optional; with a loss_fn the last rank raises TypeError, 'NoneType' object
  is not subscriptable, and the other ranks fail later with a closed connection (or wait for their timeout).
Where: torch 2.13.0, distributed/pipelining/schedules.py, _maybe_compute_loss, line 303
  (target_mbs[mb_index]);
  eval, line 528.
Why: the loss is computed whenever there is a loss_fn, target or not.
Requirement: none (usability; near LIF-1).
Schedules: all that take a loss function.
Possible fix: skip the loss in eval() when target is None and losses is None, or raise a clear ValueError.
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


def run(rank):
    lines = []
    for name in SCHEDULES:
        modules = [nn.Linear(3, 3) for _ in range(1 if name in ("GPipe", "1F1B") else 2)]
        schedule, _ = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
        try:
            with torch.no_grad():
                schedule.eval(torch.randn(2 * M, 3))
            actual = "no error"
        except Exception as error:
            actual = f"{type(error).__name__}: {error}"
        lines.append(f"{name}: expected: an output; actual: {actual}")
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
