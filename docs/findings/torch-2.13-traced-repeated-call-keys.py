"""A module that the model calls twice appears twice in the traced stage's state dict, under names the model lacks.

What: pipeline() on a model whose forward calls a submodule twice gives a stage module with that submodule under
  its own name and again as "<name>@1". The parameters are shared, but the stage's state dict has keys that the
  model's does not have: a checkpoint of the model does not load strictly, and one of the stages does not load
  into the model.
Where: torch 2.13.0, distributed/pipelining/_unflatten.py, _outline_submodules, which leaves to
  export/unflatten.py, _ModuleFrame, one submodule per call; _IR.py, Pipe._from_traced, keeps these names.
Why: unflattening makes one graph per call of a module, and the second one needs a name of its own.
Requirement: TRC-2.
Schedules: all (it happens before).
Possible fix: let the second graph hold the first one's parameters without registering them, or leave them out in
  state_dict.
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
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)

    def forward(self, x):
        return self.second(self.first(torch.tanh(self.first(x))))


def run(rank):
    model = Model()
    checkpoint = {name: value.clone() for name, value in model.state_dict().items()}
    expected = [name for name in checkpoint if name.startswith("first")]
    pipe = pipeline(model, (torch.zeros(4, 2),), split_spec={"second": SplitPoint.BEGINNING})
    stage = pipe.get_stage_module(0)
    lines = [f"stage 0 keys: expected {expected}", f"stage 0 keys: actual   {list(stage.state_dict())}"]
    try:
        stage.load_state_dict({name: checkpoint[name] for name in expected})
        actual = "loaded"
    except RuntimeError as error:
        actual = "RuntimeError:" + str(error).splitlines()[1].strip().removeprefix("RuntimeError")
    lines.append(f"loading the model's parameters of stage 0: expected loaded, actual {actual}")
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
