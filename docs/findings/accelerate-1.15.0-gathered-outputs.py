"""With ``gather_output=True`` no rank but the last gets an output, unless that has one dimension.

What: the option is to copy what the last stage returned to all ranks. The other ranks raise "zeros(): argument 'size'
  must be tuple of ints, not Tensor", and the last one waits for them. An output of one dimension arrives, because a
  tensor of one element is taken for a number. Where the memory that the shape is written into does not hold zeros by
  chance, its numbers are added to the shape and to the dtype, and the other ranks raise a KeyError, or take another
  shape. Without the option the last rank has the right output.
Where: accelerate 1.15.0, utils/operations.py, gather_tensor_shape (line 558) and copy_tensor_to_devices (line 583).
Why: what was received is indexed by ``nonzero()``, which keeps a dimension more, and is handed to ``torch.zeros`` as
  a tensor. It was summed over all ranks into ``torch.empty(2**20, dtype=torch.int)``, which is never filled.
Promise: the docstring of prepare_pippy: with gather_output "the output from the last GPU (which holds the true
  outputs) is sent across to all GPUs".
Requirement: FWD-1 (as `accelerate-gathered`).
Schedules: GPipe, evaluation (it has nothing else).
Known: https://github.com/huggingface/accelerate/pull/4245 (open) mends both.
Possible fix: ``torch.zeros`` for the buffer, and a tuple of ints, with their number, for the shape.

For the two cases with a memory, ``torch.empty`` fills integers with the number that the case says.
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
CASES = (  # whether outputs are gathered, what integers of new memory hold, dimensions of the output
    (False, None, 2),
    (True, 0, 2),
    (True, 0, 1),
    (True, 7, 1),
)
EMPTY = torch.empty


class Model(nn.Module):
    def __init__(self, dimensions):
        super().__init__()
        self.first, self.second, self.dimensions = nn.Linear(3, 3), nn.Linear(3, 3), dimensions

    def forward(self, x):
        x = self.second(self.first(x))
        return x if self.dimensions == 2 else x.sum(1)


def run(rank, gathers, memory, dimensions):
    from accelerate.inference import prepare_pippy

    torch.manual_seed(0)
    model, batch = Model(dimensions).eval(), torch.randn(2, 3)
    expected = model(batch)
    model = prepare_pippy(
        model, split_points=["second"], example_args=(batch[:1],), num_chunks=CHUNKS, gather_output=gathers
    )

    def empty(*size, dtype=None, **options):
        made = EMPTY(*size, dtype=dtype, **options)
        return made.fill_(memory) if dtype == torch.int else made

    torch.empty = empty if memory is not None else EMPTY
    output = model(batch)
    if output is None:
        return "has no output"
    return (
        f"has an output of {list(output.shape)}, {'right' if torch.allclose(output, expected) else 'wrong'}"
    )


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
        gathers, memory, dimensions = case
        held = "" if memory is None else f", new memory holds {memory}"
        print(f"gather_output={gathers}, {dimensions} dimensions{held}")
        found.append(told_by(WORLD, case))
        for rank, told in enumerate(found[-1]):
            print(f"  rank {rank} {told}")
    if not found[0][1].endswith("right") or not found[2][0].endswith("right"):
        sys.exit("inconclusive: the controls are not right")
    wrong = "raises TypeError" in found[1][0] and "raises KeyError" in found[3][0]
    print(f"gathered outputs: {'do not arrive' if wrong else 'no difference'}")


if __name__ == "__main__":
    main()
