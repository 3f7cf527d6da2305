"""With fully_shard an evaluation drops the gradients that are there, and so does the training step after it.

What: train a step, evaluate, step the optimizer: parameters stay what they are. Accumulate over an evaluation:
  only what came after it is there. No error, and losses are right. Stages that are not sharded keep their gradients.
Where: torch 2.13.0, distributed/pipelining/stage.py, _post_metadata_inference_cleanup, line 2126, called at the end of
  _initialize_pp_stages (schedules.py, line 478).
Why: stages are prepared anew whenever step() follows eval() or the other way round (schedules.py, line 420). Each
  time every gradient of an FSDPModule is set to None, as what shape inference left behind; those of the user go, too.
Requirement: DPC-10.
Schedules: all that can evaluate, with any m: GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble.
Possible fix: keep the gradients that were there before shape inference, and put them back after it.
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

WORLD = 2  # ranks; each has its stages, and is the only one of its data-parallel group
M = 2
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")


def gradient_of(module):
    """The sum of the gradient's magnitudes, over all shards; None if there is none."""
    found = next(module.parameters()).grad
    if found is None:
        return None
    return float((found.full_tensor() if hasattr(found, "full_tensor") else found).abs().sum())


def run(rank):
    mesh = init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("pp", "dp"))
    lines = []
    for name in SCHEDULES:
        for sharded in (False, True):
            torch.manual_seed(0)
            cls = get_schedule_class(name)
            several = issubclass(cls, PipelineScheduleMulti)
            n = 2 * WORLD if several else WORLD
            modules = [nn.Linear(3, 3) for _ in range(n)]
            owned = {s: modules[s] for s in range(rank, n, WORLD)}
            for module in owned.values() if sharded else ():
                fully_shard(module, mesh=mesh["dp"])
            stages = [
                PipelineStage(owned[s], s, n, torch.device("cpu"), group=mesh["pp"].get_group())
                for s in owned
            ]
            options = {"loss_fn": nn.functional.mse_loss, "scale_grads": False}
            schedule = cls(stages if several else stages[0], M, **options)
            x = torch.randn(2 * M, 3)
            args = (x,) if 0 in owned else ()
            target = {"target": x} if n - 1 in owned else {}
            seen = []
            for run_one in (schedule.step, schedule.eval, schedule.step):
                run_one(*args, **target)
                seen.append({s: gradient_of(modules[s]) for s in owned})
            first, evaluated, second = seen
            after = {s: None if evaluated[s] is None else round(evaluated[s] / first[s], 3) for s in owned}
            twice = {s: round(second[s] / first[s], 3) for s in owned}
            how = "sharded" if sharded else "whole"
            lines.append(
                f"{name}, {how} stages, rank {rank}: after eval() {after}, after another step {twice}"
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
        timeout=timedelta(seconds=60),
    )
    lines = run(rank)
    Path(folder, f"{rank}.txt").write_text("".join(f"  {line}\n" for line in lines))
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=120)
            process.kill()
        print(
            "gradient by stage, of that of one training step; expected 1.0 after eval(), 2.0 after another step"
        )
        for rank in range(WORLD):
            path = Path(folder, f"{rank}.txt")
            if not path.exists():
                sys.exit(f"inconclusive: a rank gave no result ({path.name})")
            print(path.read_text(), end="")


if __name__ == "__main__":
    main()
