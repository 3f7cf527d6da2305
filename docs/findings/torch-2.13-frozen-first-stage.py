"""Split backward drops the gradients of a stage whose input needs no gradient.

What: freeze stage 0. Stage 1's parameters get no gradient at all (None) under InterleavedZeroBubble and
  ZBVZeroBubble. Under DualPipeV, which splits the backward of some microbatches only, they get the gradient of
  the others: a wrong value.
Where: torch 2.13.0, distributed/pipelining/_backward.py, get_param_groups, lines 105-125, from
  stage_backward_input, line 177.
Why: a parameter is found through the nodes where its path meets the path of an input that needs a gradient.
  When no input does, there are no such nodes, no groups, and stage_backward_weight has nothing to do. The
  same case is known and avoided for stage 0 (stage.py, backward_weight_one_chunk, line 1085, TODO).
Requirement: TRN-5.
Schedules: InterleavedZeroBubble, ZBVZeroBubble, DualPipeV.
Possible fix: let stage_backward_input keep the outputs and their gradients for every parameter that is in no
  group, and differentiate those in stage_backward_weight; or take stage 0's path whenever no input of the
  stage requires a gradient.
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


def reference(modules, x, target, loss_fn):
    """The same loss without a pipeline: mean over the microbatches."""
    for x_mb, target_mb in zip(x.tensor_split(M), target.tensor_split(M), strict=True):
        for module in modules:
            x_mb = module(x_mb)
        (loss_fn(x_mb, target_mb) / M).backward()


def gather(result):
    """Every rank's dictionary, merged and sorted."""
    parts = [None] * WORLD
    dist.all_gather_object(parts, result)
    return dict(sorted((key, value) for part in parts for key, value in part.items()))


def run(rank):
    lines = []
    for name in SCHEDULES:
        results = []
        for _ in range(2):
            torch.manual_seed(0)
            modules = [nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(num_stages(name))]
            modules[0].requires_grad_(False)
            results.append(modules)
        modules, same = results
        schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
        x = torch.randn(2 * M, 3)
        args = (x,) if 0 in owned else ()
        target = {"target": x} if len(modules) - 1 in owned else {}
        schedule.step(*args, **target)
        reference(same, x, x, nn.functional.mse_loss)
        norms = {s: modules[s][0].weight.grad for s in owned}
        actual = gather({s: None if g is None else round(float(g.norm()), 4) for s, g in norms.items()})[1]
        expected = round(float(same[1][0].weight.grad.norm()), 4)
        verdict = "right" if actual == expected else "WRONG"
        if rank == 0:
            lines.append(
                f"{name}: norm of stage 1's gradient: expected {expected}, actual {actual}: {verdict}"
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
