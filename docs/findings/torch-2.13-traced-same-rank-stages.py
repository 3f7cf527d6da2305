"""Traced stages that are neighbours on one rank cannot run: the warm-up sends to its own rank.

What: with build_stage()'s stages every multi-stage schedule in which a rank holds two neighbouring stages (V
  schedules, or one rank with several stages) fails in the first step under gloo with "Pair is not connected".
  The same modules in PipelineStage run.
Where: torch 2.13.0, distributed/pipelining/stage.py, _PipelineStageBase._get_init_p2p_neighbors_ops, called from
  schedules.py, _warmup_p2p, for stages that are not PipelineStage.
Why: the operations that warm up the connections to the neighbouring stages do not ask whether the neighbour
  lives on the same rank; PipelineStage has another warm-up.
Requirement: TRC-1.
Schedules: ZBVZeroBubble, DualPipeV; Interleaved1F1B, LoopedBFS, InterleavedZeroBubble on one rank.
Possible fix: skip neighbours on the own rank in _get_init_p2p_neighbors_ops.
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
from torch.distributed.pipelining import PipelineStage, pipe_split, pipeline
from torch.distributed.pipelining.schedules import get_schedule_class

WORLD = 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        x = self.first(x)
        pipe_split()
        return self.second(x)


def run(rank):
    lines = []
    cpu = torch.device("cpu")
    for name in ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
        for kind in ("manual", "traced"):
            model = Model()
            if kind == "manual":
                stages = [PipelineStage(m, s, 2, cpu) for s, m in enumerate((model.first, model.second))]
            else:
                pipe = pipeline(model, (torch.zeros(2, 2),))
                stages = [pipe.build_stage(s, cpu) for s in range(2)]
            schedule = get_schedule_class(name)(stages, 2, loss_fn=nn.functional.mse_loss)
            x = torch.randn(4, 2)
            try:
                schedule.step(x, target=x)
                actual = "a step"
            except Exception as error:
                told = "Pair is not connected" if "Pair is not connected" in str(error) else str(error)
                actual = f"{type(error).__name__}: {told}"
            lines.append(f"{name}, {kind} stages: expected a step, actual {actual}")
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
