"""Split backward loses the gradients of modules that fully_shard reshards after their forward.

What: the blocks of a stage are sharded one by one, then the stage (as for any transformer), with the defaults. Under
  InterleavedZeroBubble and ZBVZeroBubble the parameters of the last stage get no gradient (None), those of the stages
  between it and the first a wrong one; under DualPipeV, which splits some backwards only, the last stage's is wrong.
  No error.
  With `reshard_after_forward=False`, or with the stage alone sharded (a root is not resharded), all is right.
Where: torch 2.13.0, distributed/pipelining/stage.py, backward_maybe_with_nosync, lines 812 and 821: the input and
  the weight part look at self.submod.parameters().
Why: after a resharding forward those are the shards. The graph holds the gathered parameters, so none of those that
  are asked for is found in it.
Requirement: DPC-1, DPC-8.
Schedules: InterleavedZeroBubble, ZBVZeroBubble, DualPipeV.
Possible fix: unshard before the input part and keep unsharded until the weight part, as the schedule's own UNSHARD
  action intends; or set reshard_after_forward=False on the stage's modules, or refuse.
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
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

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
    mesh = DeviceMesh.from_group(replicas, "cpu")
    lines = []
    for how, options in (("defaults", {}), ("reshard_after_forward=False", {"reshard_after_forward": False})):
        for name in SCHEDULES:
            n, owned = stages_of(name, position)
            modules, right = build_model(n), mean_gradients(n)
            stages = []
            for s in owned:
                for block in (modules[s][0], modules[s][2]):
                    fully_shard(block, mesh=mesh, **options)
                fully_shard(modules[s], mesh=mesh, **options)
                stages.append(PipelineStage(modules[s], s, n, torch.device("cpu"), group=pipeline))
            cls = get_schedule_class(name)
            several = issubclass(cls, PipelineScheduleMulti)
            schedule = cls(stages if several else stages[0], M, loss_fn=nn.functional.mse_loss)
            x, target = data_of(replica)
            args = (x,) if 0 in owned else ()
            goal = {"target": target} if n - 1 in owned else {}
            schedule.step(*args, **goal)
            none, wrong = set(), set()
            for s in owned:
                for key, p in modules[s].named_parameters():
                    if p.grad is None:
                        none.add(s)
                    elif not torch.allclose(p.grad.full_tensor(), right[s][key]):
                        wrong.add(s)
            lines.append(
                f"{how}, {name}: stages without gradients: {gather(none) or 'none'}; "
                f"with wrong gradients: {gather(wrong) or 'none'}"
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
