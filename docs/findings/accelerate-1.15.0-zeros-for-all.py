"""A tensor that is for all samples is made one of the batch, with zeros for every sample but the first.

What: a batch of 3 is padded for 2 chunks to 4. A mask of one row, which the model adds to every sample, is padded to
  4 rows beside it: the second and the third sample get zeros instead of the mask, and their outputs are silently
  wrong. With a row for each sample all is right. A batch that is not padded is refused by torch, which finds one
  chunk of the mask where two are due, and torch alone refuses either.
Where: accelerate 1.15.0, utils/operations.py, pad_input_tensors (line 805); inference.py, pippy_forward (line 101).
Why: every tensor is padded to the size that the batch is to have, which was found in the first one, and not by the
  rows that are missing.
Promise: the docstring of pad_input_tensors: "New tensors are just the last input repeated"; that of prepare_pippy:
  example_kwargs are "the expected inputs for the model". That the model's result is the same is PyTorch's semantics.
Requirement: none (a tensor that is given whole is not claimed; near FWD-22).
Schedules: GPipe, evaluation (it has nothing else).
Known: no thread about this is known.
Possible fix: pad only tensors whose first dimension is the batch's, and refuse others.
"""

import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo", ACCELERATE_USE_CPU="true")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

PATIENCE = 90  # seconds; most of it is for imports
AFTERWARDS = 10  # seconds that the others have once a rank has said something
WORLD, CHUNKS = 2, 2
CASES = (  # what runs the model, samples, rows of the mask
    ("accelerate", 3, 3),
    ("accelerate", 3, 1),
    ("accelerate", 2, 1),
    ("torch alone", 4, 1),
)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, mask):
        return self.second(self.first(x) + mask)


def run(rank, how, samples, rows):
    from accelerate.inference import prepare_pippy
    from torch.distributed import pipelining

    torch.manual_seed(0)
    model, batch, row = Model().eval(), torch.randn(samples, 3), torch.randn(1, 3)
    expected = model(batch, row)
    mask = row.expand(rows, 3).clone()
    traced = (batch[:1] if samples == 2 else batch[:2], mask[:1] if rows == 1 else mask[:2])
    if how == "accelerate":
        output = prepare_pippy(model, split_points=["second"], example_args=traced, num_chunks=CHUNKS)(
            batch, mask
        )
    else:
        spec = {"second": pipelining.SplitPoint.BEGINNING}
        stage = pipelining.pipeline(model, traced, split_spec=spec).build_stage(rank, torch.device("cpu"))
        output = pipelining.ScheduleGPipe(stage, CHUNKS).step(*([batch, mask] if rank == 0 else []))
    if output is None:
        return "has no output"
    same = torch.isclose(output[:samples], expected).all(1)
    return "outputs are " + ", ".join("right" if one else "wrong" for one in same.tolist())


def worker(rank, world, case, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world)
    )
    os.environ.update(MASTER_ADDR="127.0.0.1")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=PATIENCE),
    )
    from accelerate import PartialState

    PartialState(cpu=True)
    try:
        with torch.no_grad():
            told = run(rank, *case)
    except Exception as error:
        told = f"raises {type(error).__name__}: {str(error).strip().splitlines()[0]}"
    Path(folder, f"{rank}.part").write_text(told)
    Path(folder, f"{rank}.part").rename(Path(folder, f"{rank}.txt"))
    time.sleep(PATIENCE)  # a rank that has raised lives on, and its connections with it


def told_by(world, case):
    """What each rank says; of one that says nothing after the others have, that it waits or has ended."""
    with tempfile.TemporaryDirectory() as folder:
        make = mp.get_context("spawn").Process
        processes = [make(target=worker, args=(rank, world, case, folder)) for rank in range(world)]
        for process in processes:
            process.start()
        paths = [Path(folder, f"{rank}.txt") for rank in range(world)]
        begun = time.monotonic()
        while not all(path.exists() for path in paths) and time.monotonic() < begun + PATIENCE:
            if any(
                path.exists() or not process.is_alive()
                for path, process in zip(paths, processes, strict=True)
            ):
                begun = min(begun, time.monotonic() - PATIENCE + AFTERWARDS)
            time.sleep(0.1)
        told = []
        for path, process in zip(paths, processes, strict=True):
            if path.exists():
                told.append(path.read_text())
            else:
                told.append("waits" if process.is_alive() else f"ends with exit code {process.exitcode}")
        for process in processes:
            process.kill()
            process.join()
    return told


def main():
    found = []
    for case in CASES:
        how, samples, rows = case
        print(f"{how}: {samples} samples in {CHUNKS} chunks, mask of {rows} row(s)")
        found.append(told_by(WORLD, case))
        for rank, told in enumerate(found[-1]):
            print(f"  rank {rank} {told}")
    if found[0][1] != "outputs are right, right, right":
        sys.exit("inconclusive: the control is not right")
    wrong = found[1][1] == "outputs are right, wrong, wrong"
    print(f"a mask for all samples: {'is zero for all but the first' if wrong else 'no difference'}")


if __name__ == "__main__":
    main()
