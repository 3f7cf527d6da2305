"""With ``split_points="auto"`` the model is cut into as many stages as there are microbatches, whatever the ranks are.

What: on two ranks, with ``num_chunks=4``, a model is cut into four stages, of which two run. What the second one
  returns is sent to a rank that has no use for it, and a process ends (gloo). With ``num_chunks=1`` there is one
  stage, and both ranks raise. With two chunks, and with four where the split point is given, the output is right.
Where: accelerate 1.15.0, inference.py, prepare_pippy (line 166).
Why: the device map is made for ``num_chunks``, and so are the split points; there is a stage for each of them, and
  each rank builds one.
Promise: the docstring of prepare_pippy: num_chunks "can be tuned and played with. In general one should have
  num_chunks >= num_gpus", and "'auto' will find the best balanced split given any model".
Requirement: none (split points are given by name).
Schedules: GPipe, evaluation (it has nothing else).
Known: no thread about this is known; near https://github.com/huggingface/accelerate/issues/2497 (closed), in which
  there are fewer stages than ranks.
Possible fix: make the device map for the number of processes.
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
WORLD = 2
CASES = ((2, "auto"), (4, ["4"]), (4, "auto"), (1, "auto"))  # num_chunks, split_points


def run(rank, chunks, points):
    import logging

    from accelerate.inference import prepare_pippy

    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(724, 724) for _ in range(8))).eval()
    batch = torch.randn(chunks, 724)
    expected = model(batch)
    model = prepare_pippy(model, split_points=points, example_args=(batch[:1],), num_chunks=chunks)
    stage = model.pippy_stage._stage
    Path(f"stages-{rank}.txt").write_text(f"stage {stage.stage_index} of {stage.num_stages}")
    output = model(batch)
    if output is None:
        return "has no output"
    return f"has an output, {'right' if torch.allclose(output, expected, atol=1e-5) else 'wrong'}"


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
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            told = told_by(WORLD, case)
            stages = [Path(f"stages-{rank}.txt") for rank in range(WORLD)]
            built = [path.read_text() if path.exists() else "no stage" for path in stages]
            os.chdir("/")
        print(f"num_chunks={case[0]}, split_points={case[1]!r}")
        for rank, (stage, said) in enumerate(zip(built, told, strict=True)):
            # how a rank ends whose neighbour's process has ended is chance
            words = said if said.startswith(("has", "ends")) or stage == "no stage" else "has no output"
            print(f"  rank {rank}: {stage}, {words}")
        found.append((built, told))
    if not all(told[-1].endswith("right") for _, told in found[:2]):
        sys.exit("inconclusive: the controls are not right")
    wrong = found[2][0][1] == "stage 1 of 4" and found[3][0] == ["no stage"] * 2
    print(f"stages: {'as many as chunks' if wrong else 'no difference'}")


if __name__ == "__main__":
    main()
