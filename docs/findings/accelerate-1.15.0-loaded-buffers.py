"""What is loaded into a prepared model reaches its parameters, and not its buffers.

What: prepare_pippy hands the model back with another forward. A state that is loaded into it, as by load_state_dict,
  changes the parameters that are computed with, but not running means and variances of a batch norm, which stay those
  from before: outputs are silently wrong, of a mixture of two states. Loaded before the model is prepared, or into a
  model without buffers, a state is computed with.
Where: accelerate 1.15.0, inference.py, prepare_pippy (line 126), which keeps the model and runs a stage made of it.
Why: torch's front end copies buffers into the stages that it makes, and shares parameters. The model still has the
  buffers that nothing reads any more. In torch alone the user has the stage, and loads into that.
Promise: PyTorch's semantics of load_state_dict: it copies parameters and buffers into the module, whose forward uses
  them. The docstring of prepare_pippy: it "wraps `model` for pipeline parallel inference".
Requirement: LIF-4, of states with buffers.
Schedules: GPipe, evaluation (it has nothing else).
Known: no thread about this is known.
Possible fix: give the model's modules the buffers of the stage, as the stage has its parameters.
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
CASES = (("batch norm", "before"), ("layer norm", "after"), ("batch norm", "after"))


def model_of(norm, seed):
    torch.manual_seed(seed)
    own = nn.BatchNorm1d(3) if norm == "batch norm" else nn.LayerNorm(3)
    model = nn.Sequential(nn.Linear(3, 3), own, nn.Linear(3, 3)).eval()
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape) + 0.5)
    return model


def run(rank, norm, when):
    from accelerate.inference import prepare_pippy

    model, loaded = model_of(norm, 0), model_of(norm, 1)
    batch = torch.randn(2, 3)
    if when == "before":
        model.load_state_dict(loaded.state_dict())
    model = prepare_pippy(model, split_points=["2"], example_args=(batch[:1],), num_chunks=CHUNKS)
    if when == "after":
        model.load_state_dict(loaded.state_dict())
    output = model(batch)
    if output is None:
        return "has no output"
    return f"output is {'that of what was loaded' if torch.allclose(output, loaded(batch)) else 'another'}"


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
        norm, when = case
        print(f"a model with {norm}, loaded {when} it is prepared")
        found.append(told_by(WORLD, case))
        for rank, told in enumerate(found[-1]):
            print(f"  rank {rank} {told}")
    if not all(told[1].endswith("loaded") for told in found[:2]):
        sys.exit("inconclusive: the controls are not right")
    print(
        f"loaded buffers: {'are not computed with' if found[2][1].endswith('another') else 'no difference'}"
    )


if __name__ == "__main__":
    main()
