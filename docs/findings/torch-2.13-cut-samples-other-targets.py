"""If a batch is a DTensor that is cut in its samples, and the target is one that is whole, samples meet other targets.

What: a batch may consist of DTensors. If the argument is Shard(0) and the target Replicate(), outputs are right, and
  losses and gradients are those of other pairs of samples and targets, without an error. With both cut alike, or both
  whole, all is right.
Where: torch 2.13.0, distributed/pipelining/microbatch.py, _split_tensor, lines 209 to 235, and schedules.py, step,
  lines 778 and 1978, which splits targets in the same way.
Why: every tensor is split where it lies, by itself. Of an argument that is cut, the first microbatch has the first
  samples of every rank's part, which are not the first of the batch; of a target that is whole, the first of the batch.
Requirement: FWD-31.
Schedules: all; stages on several ranks each, two microbatches or more.
Possible fix: if samples are cut in some tensor of a batch, split the others so that the same samples come together; or
  refuse such a batch.
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
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

STAGES, PARTS, M = 2, 2, 2
WORLD = STAGES * PARTS
CASES = ((Replicate(), Replicate()), (Shard(0), Shard(0)), (Shard(0), Replicate()))


def model():
    torch.manual_seed(0)
    return [nn.Linear(3, 3, dtype=torch.float64) for _ in range(STAGES)]


def batch():
    torch.manual_seed(1)
    return torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 3, dtype=torch.float64)


def loss_fn(output, target):
    return ((output - target) ** 2).mean()


def run(rank):
    mesh = init_device_mesh("cpu", (STAGES, PARTS), mesh_dim_names=("stages", "parts"))
    parts, s = mesh["parts"], mesh.get_local_rank("stages")
    lines = []
    for placement, of_target in CASES:
        right, (x, y) = model(), batch()
        whole = nn.Sequential(*right)
        loss_fn(whole(x), y).backward()
        module = distribute_module(model()[s], parts)  # every rank has all parameters, as DTensors
        stage = PipelineStage(
            module,
            s,
            STAGES,
            torch.device("cpu"),
            group=mesh.get_group("stages"),
            get_mesh=lambda names, layout: parts,
        )
        schedule, losses = ScheduleGPipe(stage, M, loss_fn=loss_fn), []
        args = () if s else (distribute_tensor(x, parts, [placement]),)
        last = {"target": distribute_tensor(y, parts, [of_target]), "losses": losses} if s else {}
        output = schedule.step(*args, **last)
        gradient = module.weight.grad.full_tensor()
        wrong = {s: not torch.allclose(gradient, right[s].weight.grad)}
        told = [None] * WORLD
        if s:
            found = sum(one.full_tensor() for one in losses).item() / M
            same = torch.allclose(output.full_tensor(), whole(x))
            expected = loss_fn(whole(x), y).item()
            wrong["told"] = (
                f"output {'right' if same else 'wrong'}, loss {found:.4f} ({expected:.4f} expected)"
            )
        dist.all_gather_object(told, wrong)
        wrongs = [str(stage) for stage in range(STAGES) if any(one.get(stage) for one in told)]
        lines.append(
            f"arguments {placement}, targets {of_target}: {told[-1]['told']}, "
            f"wrong gradients in stages: {', '.join(wrongs) or 'none'}"
        )
    return lines if rank == 0 else []


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=40),
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
