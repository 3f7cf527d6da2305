"""With mixed precision, the split backward adds gradients of microbatches up in the dtype that computes.

What: stages are sharded with `MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)`, as most
  large models are trained. Microbatches contribute 1 and 256 in turn, which bfloat16 adds up to 256. Under GPipe, 1F1B
  and Interleaved1F1B eight of them are 1028. Under InterleavedZeroBubble, ZBVZeroBubble and DualPipeV some stages have
  less: every 1 is lost on the last rank's stages under the first. No error, and no trace in the loss.
Where: torch 2.13.0, distributed/pipelining/_backward.py, stage_backward_weight, lines 336 to 339: gradients are added
  up in the `.grad` of the gathered parameters, which are in bfloat16. FSDP takes them from there
  (FSDPParamGroup.post_backward) when the next input part runs, and at the end of the step. Weight parts between which
  no input part of their stage runs are added up in bfloat16.
Promise: MixedPrecisionPolicy, reduce_dtype: if the reduction of gradients is disabled by set_requires_gradient_sync(),
  which the stage calls for all microbatches but the last, FSDP accumulates gradients using reduce_dtype.
Requirement: DPC-11.
Schedules: InterleavedZeroBubble, ZBVZeroBubble, DualPipeV.
Possible fix: after each weight part, run the post-backward of the stage's FSDP modules, with the reduction disabled.
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
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

P = 2  # pipeline ranks
REPLICAS = 1  # a group of one rank takes the same way as any other
WORLD = P * REPLICAS  # rank = P * replica + pipeline rank
M = 8
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
POLICIES = {
    "float32": MixedPrecisionPolicy(),
    "bfloat16, reduced in float32": MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    ),
}


def stages_of(name, position):
    """The number of stages, and those of one pipeline rank."""
    n = P if name in ("GPipe", "1F1B") else 2 * P
    v_shaped = name in ("ZBVZeroBubble", "DualPipeV")
    return n, [position, n - 1 - position] if v_shaped else list(range(position, n, P))


class Stage(nn.Module):
    """A linear map by 1: the gradient of its weight is the sum of its inputs."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.map.weight)

    def forward(self, x):
        return self.map(x) * 1.0


def total(output, target):
    return output.sum()


def run(replica, position, pipeline, replicas):
    mesh = DeviceMesh.from_group(replicas, "cpu")
    lines = []
    for how, policy in POLICIES.items():
        for name in SCHEDULES:
            n, owned = stages_of(name, position)
            modules = {s: fully_shard(Stage(), mesh=mesh, mp_policy=policy) for s in owned}
            for module in modules.values():
                module.set_reshard_after_forward(False)
            stages = [PipelineStage(modules[s], s, n, torch.device("cpu"), group=pipeline) for s in owned]
            cls = get_schedule_class(name)
            several = issubclass(cls, PipelineScheduleMulti)
            schedule = cls(stages if several else stages[0], M, loss_fn=total, scale_grads=False)
            x = torch.tensor([[1.0], [256.0]] * (M // 2))
            goal = {"target": torch.zeros(M, 1)} if n - 1 in owned else {}
            schedule.step(*((x,) if 0 in owned else ()), **goal)
            own = {s: modules[s].map.weight.grad.full_tensor().item() for s in owned}
            parts = [None] * WORLD
            dist.all_gather_object(parts, own)
            found = {s: value for part in parts for s, value in part.items()}
            shown = ", ".join(f"{found[s]:g}" for s in sorted(found))
            lines.append(f"{how}, {name}: the weights' gradients are {shown}")
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
