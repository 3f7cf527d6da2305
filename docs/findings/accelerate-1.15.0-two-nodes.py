"""On two nodes every node builds the first stages, and none the last.

What: four ranks on two nodes build stages 0, 1, 0 and 1 of four. Both first ranks of a node pass inputs on, no rank
  has stages 2 and 3, and no rank returns the output. The same four ranks on one node build stages 0 to 3, and the
  last one has the right output.
Where: accelerate 1.15.0, inference.py, build_pipeline (line 95) and pippy_forward (line 107).
Why: the stage is chosen by ``local_process_index`` and the inputs are given where ``is_local_main_process``; the
  group is that of all processes.
Promise: the comment in pippy_forward, "Each node will get a copy of the full output which is only on the last GPU",
  and the docstring of prepare_pippy, whose number of chunks is that of all processes. Nothing refuses several nodes.
Requirement: none (ranks are on one node for the adapter; near SCH-7).
Schedules: GPipe, evaluation (it has nothing else).
Known: no thread about this is known.
Possible fix: ``process_index`` and ``is_main_process``.

The nodes are those of the environment: LOCAL_RANK and LOCAL_WORLD_SIZE, as a launcher sets them.
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
WORLD = 4
CASES = ((4,), (2,))  # ranks per node


def run(rank, per_node):
    from accelerate import PartialState
    from accelerate.inference import prepare_pippy

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(WORLD))).eval()
    batch = torch.randn(WORLD, 3)
    expected = model(batch)
    model = prepare_pippy(model, split_points=["1", "2", "3"], example_args=(batch[:1],))
    passes = ", passes inputs on" if PartialState().is_local_main_process else ""
    Path(f"stage-{rank}.txt").write_text(f"stage {model.pippy_stage._stage.stage_index}{passes}")
    output = model(batch)
    if output is None:
        return "no output"
    return "output is right" if torch.allclose(output, expected) else "output is wrong"


def worker(rank, world, case, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank % case[0]), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(case[0])
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
    built, outputs = [], []
    for case in CASES:
        print(f"{WORLD // case[0]} node(s) of {case[0]} ranks")
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            told = told_by(WORLD, case)
            built.append([Path(f"stage-{rank}.txt").read_text() for rank in range(WORLD)])
            os.chdir("/")
        outputs.append([one for one in told if one.startswith("output")])
        for rank, stage in enumerate(built[-1]):
            print(f"  rank {rank}: {stage}")
        print(f"  {outputs[-1][0] if outputs[-1] else 'no rank has an output'}")
    if outputs[0] != ["output is right"]:
        sys.exit("inconclusive: the control is not right")
    print(f"two nodes: {'no rank has the last stages' if not outputs[1] else 'no difference'}")


if __name__ == "__main__":
    main()
