"""A wrong split point is dropped without a word, leaves a broken pipe, or is refused without its name.

What: of split points given by name, (a) one whose submodule the forward never calls is ignored: the pipe has one
  stage fewer than asked for, and the rank that wants the last stage fails alone; (b) one before the first
  computation leaves a pipe that says num_stages = 1 and has no stage 0; (c) one that names no submodule raises an
  AttributeError of the parent module, which does not give the name of the point ("'ModuleList' object has no
  attribute '7'").
Where: torch 2.13.0, distributed/pipelining/_IR.py, annotate_split_points (c), Pipe._from_traced (a, b: stages are
  counted and numbered by what split_module found), Pipe._number_and_count_forward_stages (the assertion that
  would notice (b) is commented out).
Why: the number of stages is read off the graph and never compared with the number of split points.
Requirement: TRC-4, TRC-6.
Schedules: all (it happens before).
Possible fix: after splitting, require len(split_spec) + 1 stages numbered from 0, and name the points whose
  submodule was not reached; raise with the whole name in annotate_split_points.
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
from torch.distributed.pipelining import SplitPoint, pipeline

WORLD = 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        self.spare = nn.Linear(2, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def run(rank):
    lines = []
    for name in ("layers.1", "spare", "layers.0", "layers.7"):
        try:
            pipe = pipeline(Model(), (torch.zeros(4, 2),), split_spec={name: SplitPoint.BEGINNING})
            actual = f"num_stages {pipe.num_stages}"
        except Exception as error:
            lines.append(
                f"before {name}: expected an error that names it, actual {type(error).__name__}: {error}"
            )
            continue
        built = []
        for s in range(2):
            try:
                pipe.build_stage(s, torch.device("cpu"))
                built.append(f"stage {s} built")
            except Exception as error:
                built.append(f"stage {s} {type(error).__name__}: {error}")
        expected = "num_stages 2" if name == "layers.1" else "an error that names it"
        lines.append(f"before {name}: expected {expected}, actual {actual}; {'; '.join(built)}")
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
