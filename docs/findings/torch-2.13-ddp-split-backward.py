"""Split backward never reduces the gradients of a stage in DistributedDataParallel, but for stage 0.

What: two replicas of a pipeline with data of their own. Under InterleavedZeroBubble and ZBVZeroBubble every stage
  but the first keeps its own replica's gradients; there is no reduction and no error. Under DualPipeV, which splits
  some backwards only, stages whose last backward is a weight part are reduced too early, or not at all.
  (`input_args` and `output_args` are given, so that nothing of torch-2.13-ddp-armed-by-dry-run.py disturbs.)
Where: torch 2.13.0, distributed/pipelining/_backward.py, stage_backward_weight, lines 325-339: gradients are
  computed by torch.autograd.grad and stored by hand; stage.py, backward_maybe_with_nosync, line 827, prepares the
  wrapper for the last one all the same.
Why: the wrapper reduces in hooks of AccumulateGrad nodes, which never run.
Requirement: DPC-1, DPC-2, DPC-3, DPC-4, DPC-6.
Schedules: InterleavedZeroBubble, ZBVZeroBubble, DualPipeV.
Known: https://github.com/pytorch/pytorch/issues/144530 (open).
Possible fix: torch.autograd.backward(..., inputs=the group's parameters) in the weight part; or refuse the
  combination.
"""

import logging
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
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.nn.parallel import DistributedDataParallel

P = 2  # pipeline ranks
REPLICAS = 2  # each with data of its own
WORLD = P * REPLICAS  # rank = P * replica + pipeline rank
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


def stages_of(name, position):
    """The number of stages, and those of one pipeline rank."""
    n = P if name in ("GPipe", "1F1B") else 2 * P
    v_shaped = name in ("ZBVZeroBubble", "DualPipeV")
    return n, [position, n - 1 - position] if v_shaped else list(range(position, n, P))


def build_model(n):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(n)]


def data_of(replica):
    generator = torch.Generator().manual_seed(replica)
    return torch.randn(2 * M, 4, generator=generator), torch.randn(2 * M, 4, generator=generator)


def mean_gradients(n):
    """Per stage and parameter the mean over replicas of the gradients of the unpipelined model."""
    total = [
        {name: torch.zeros_like(p) for name, p in module.named_parameters()} for module in build_model(n)
    ]
    for replica in range(REPLICAS):
        modules = build_model(n)
        x, target = data_of(replica)
        for x_mb, target_mb in zip(x.tensor_split(M), target.tensor_split(M), strict=True):
            for module in modules:
                x_mb = module(x_mb)
            (nn.functional.mse_loss(x_mb, target_mb) / M).backward()
        for s, module in enumerate(modules):
            for name, p in module.named_parameters():
                total[s][name] += p.grad / REPLICAS
    return total


def gather(found):
    """Every rank's set, merged and sorted."""
    parts = [None] * WORLD
    dist.all_gather_object(parts, found)
    return sorted(set().union(*parts))


def run(replica, position, pipeline, replicas):
    lines = []
    for name in SCHEDULES:
        counts = {}

        def hook(stage, bucket, counts=counts):
            counts[stage] += bucket.index() == 0
            return allreduce_hook(replicas, bucket)

        n, owned = stages_of(name, position)
        modules, right = build_model(n), mean_gradients(n)
        stages = []
        for s in owned:
            wrapped = DistributedDataParallel(modules[s], process_group=replicas)
            wrapped.register_comm_hook(s, hook)
            # told, so that the wrapper is not run outside of a step
            told = torch.zeros(2, 4, requires_grad=True)
            shapes = {"input_args": told if s else told.detach(), "output_args": told}
            stages.append(PipelineStage(wrapped, s, n, torch.device("cpu"), group=pipeline, **shapes))
        cls = get_schedule_class(name)
        several = issubclass(cls, PipelineScheduleMulti)
        schedule = cls(stages if several else stages[0], M, loss_fn=nn.functional.mse_loss)
        x, target = data_of(replica)
        for step in range(2):
            counts.update(dict.fromkeys(owned, 0))
            for s in owned:
                modules[s].zero_grad()
            args = (x,) if 0 in owned else ()
            goal = {"target": target} if n - 1 in owned else {}
            error = None
            try:
                schedule.step(*args, **goal)
            except Exception as raised:
                while raised.__cause__ is not None:
                    raised = raised.__cause__
                error = str(raised)
            errors = [None] * WORLD
            dist.all_gather_object(errors, error)
            if any(errors):
                own = [text for text in errors if text and "INTERNAL ASSERT" in text] or [
                    e for e in errors if e
                ]
                lines.append(f"{name}, step {step}: raised: {own[0][:70]}")
                break
            wrong = gather(
                {
                    s
                    for s in owned
                    if not all(
                        torch.allclose(p.grad, right[s][key]) for key, p in modules[s].named_parameters()
                    )
                }
            )
            times = [f"{s}: {count}" for s, count in gather(set(counts.items()))]
            lines.append(
                f"{name}, step {step}: reductions per stage {', '.join(times)} (expected 1 each); "
                f"stages whose gradients are not the mean: {wrong or 'none'}"
            )
    return lines


def worker(rank, folder):
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)  # a schedule prints its table when a step fails
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    pipelines = [dist.new_group([P * r + p for p in range(P)]) for r in range(REPLICAS)]
    replicas = [dist.new_group([P * r + p for r in range(REPLICAS)]) for p in range(P)]
    replica, position = divmod(rank, P)
    lines = run(replica, position, pipelines[replica], replicas[position])
    Path(folder, f"{rank}.txt").write_text("".join(f"{line}\n" for line in lines))
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=200)
            process.kill()
        path = Path(folder, "0.txt")
        if not path.exists():
            sys.exit(f"inconclusive: a rank gave no result ({path.name})")
        print(path.read_text(), end="")


if __name__ == "__main__":
    main()
