"""A traced stage evaluates in training mode: Module.eval() is accepted and changes nothing.

What: pipeline() traces the model in the mode it is in. Afterwards stage.submod.eval() returns and reports
  training = False, but batch norm goes on normalising with the batch's statistics and updating its buffers, and
  dropout goes on dropping. A model that is trained and evaluated in turn through the pipeline gives wrong
  evaluations and lets them into the running statistics.
Where: torch 2.13.0, distributed/pipelining/_IR.py, Pipe._from_traced: exported_program.module() has train() and
  eval() that raise NotImplementedError, so that nobody takes them for working; the stage modules that
  _outline_submodules makes from its graph have Module's.
Why: torch.export writes the mode into the graph, and the guard against switching it is lost with the module.
Requirement: TRC-3.
Schedules: all.
Possible fix: move the exported module in both modes into the stage, or let train() and eval() of stage modules
  raise as those of the exported module do.
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
from torch.distributed.pipelining import pipeline
from torch.distributed.pipelining.schedules import ScheduleGPipe

WORLD = 1


def run(rank):
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5))
    pipe = pipeline(model, (torch.zeros(4, 2),))
    stage = pipe.build_stage(0, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2)
    x = torch.randn(8, 2)
    stage.submod.eval()
    with torch.no_grad():
        output = schedule.step(x)
    expected = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5)).eval()(x)
    mean = stage.submod.state_dict()["0.running_mean"]
    return [
        f"stage.submod.training: expected False, actual {stage.submod.training}",
        f"elements dropped in evaluation: expected 0, actual {'some' if (output == 0).any() else 0}",
        f"output: expected {expected[0].tolist()}, actual {output[0].tolist()}",
        f"running_mean after evaluation: expected [0.0, 0.0], actual {mean.tolist()}",
    ]


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
            process.join()
        for rank, process in enumerate(processes):
            path = Path(folder, f"{rank}.txt")
            if path.exists():
                print(path.read_text(), end="")
            elif process.exitcode in (0, -9):  # it was killed above
                sys.exit(f"inconclusive: rank {rank} gave no result")
            else:
                print(f"rank {rank}: no result, exit code {process.exitcode}")


if __name__ == "__main__":
    main()
