"""kwargs_chunk_spec is matched to keyword arguments by position and not by name.

What: kwargs_chunk_spec is a dictionary from the name of a keyword argument to the dimension along which it is cut.
  Where it is written in another order than step() is given its keyword arguments, each argument is cut as was said of
  another. A misspelt name is accepted, too: only the number of names is checked. If both tensors can be cut along
  both dimensions, as square ones can, nothing is raised and the model computes with the wrong values.
Where: torch 2.13.0, distributed/pipelining/microbatch.py, _shard_dict_of_args: lines 311 (the check), 319-324 and
  328.
Why: both dictionaries are flattened to lists, each in its own order, and the two lists are zipped.
Requirement: FWD-22.
Schedules: all that take kwargs_chunk_spec (all but LoopedBFS).
Possible fix: refuse names that differ, and take the specs in the order of the arguments (args_chunk_spec[k] for k in
  args_dict).
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
from torch.distributed.pipelining.microbatch import TensorChunkSpec
from torch.distributed.pipelining.schedules import get_schedule_class

M = 2
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B")
SIZE = 4  # samples, and features: rows is cut along dimension 0, columns along dimension 1
CASES = (
    ("in the order of the call", {"rows": 0, "columns": 1}),
    ("in the other order", {"columns": 1, "rows": 0}),
    ("in the order of the call, one name misspelt", {"rows": 0, "colums": 1}),
    ("in the order of the call, both names wrong", {"a": 0, "b": 1}),
)


class Sums(nn.Linear):
    """Adds the sums over all features, for every sample. In rows these are rows, in columns columns."""

    def forward(self, x, rows, columns):
        sums = rows.reshape(-1, SIZE).sum(1) + 10 * columns.reshape(SIZE, -1).sum(0)
        return super().forward(x) + sums[:, None]


def data():
    rows = torch.arange(1.0, SIZE * SIZE + 1).reshape(SIZE, SIZE)
    return torch.zeros(SIZE, 1), rows, (rows * rows).t()


def run():
    x, rows, columns = data()
    right = Sums(1, 1, bias=False)(x, rows, columns).flatten().tolist()
    lines = [f"outputs of {SIZE} samples; expected {right}, or an error where a name is wrong"]
    for words, dims in CASES:
        lines.append(f"kwargs_chunk_spec {words}: {dims}; step(x, rows=..., columns=...)")
        for name in SCHEDULES:
            stage = PipelineStage(Sums(1, 1, bias=False), 0, 1, torch.device("cpu"))
            spec = TensorChunkSpec.from_dict(dims)
            options = {"loss_fn": nn.functional.mse_loss, "kwargs_chunk_spec": spec}
            schedule = get_schedule_class(name)([stage] if name.startswith("Inter") else stage, M, **options)
            try:
                found = schedule.step(x, rows=rows, columns=columns, target=torch.zeros(SIZE, 1))
                told = f"actual {found.flatten().tolist()}, nothing raised"
            except Exception as error:
                told = f"raises {type(error).__name__}: {str(error)[:80]}"
            lines.append(f"  {name}: {told}")
    return lines


def worker(folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1, timeout=timedelta(seconds=60)
    )
    Path(folder, "0.txt").write_text("".join(f"{line}\n" for line in run()))
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        process = mp.get_context("spawn").Process(target=worker, args=(folder,))
        process.start()
        process.join(timeout=60)
        process.kill()
        path = Path(folder, "0.txt")
        if not path.exists():
            sys.exit(f"inconclusive: a rank gave no result ({path.name})")
        print(path.read_text(), end="")


if __name__ == "__main__":
    main()
