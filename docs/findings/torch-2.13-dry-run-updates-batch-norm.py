"""Metadata inference updates batch norm's statistics, on later stages from uninitialised memory.

What: num_batches_tracked counts one microbatch too many after the first step, and one more after every
  change between step() and eval(). Stage 0's running statistics count the first microbatch twice; those of
  later stages take in whatever lay in uninitialised memory. The script asks torch to fill uninitialised
  memory with NaN (torch.use_deterministic_algorithms): running_mean becomes NaN and stays so.
Where: torch 2.13.0, distributed/pipelining/stage.py, PipelineStage._forward_metadata_inference, line 1944
  (the module is called in training mode); its input comes from _to_tensor, line 1858 (TensorMeta.to_tensor,
  torch.empty_strided). Repeated by schedules.py, _initialize_pp_stages, line 420.
Why: the dry run calls the real module with its real buffers.
Requirement: TRN-9.
Known: https://github.com/pytorch/pytorch/pull/188558 and https://github.com/pytorch/pytorch/pull/188763.
Schedules: all; not when every stage is given input_args and output_args.
Possible fix: run inference through torch.func.functional_call with cloned buffers (or FakeTensorMode), and
  zero-fill what is made from metadata.
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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WORLD = 2
M = 4


def run(rank):
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(WORLD)]
    torch.manual_seed(0)
    same = [nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(WORLD)]
    stage = PipelineStage(modules[rank], rank, WORLD, torch.device("cpu"))
    schedule = Schedule1F1B(stage, M, loss_fn=nn.functional.mse_loss)
    x = torch.randn(4 * M, 3)
    lines = []
    for mode in ("step", "eval", "step"):
        getattr(modules[rank], "train" if mode == "step" else "eval")()
        getattr(schedule, mode)(*(() if rank else (x,)), **({"target": x} if rank else {}))
        if mode == "step":
            for x_mb in x.tensor_split(M):
                for module in same:
                    x_mb = module(x_mb)
        actual, expected = modules[rank][1], same[rank][1]
        lines += [
            f"stage {rank} after {mode}: num_batches_tracked expected {int(expected.num_batches_tracked)}"
            f" actual {int(actual.num_batches_tracked)}",
            f"stage {rank} after {mode}: running_mean[0] expected {float(expected.running_mean[0]):.4f}"
            f" actual {float(actual.running_mean[0]):.4f}",
        ]
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
