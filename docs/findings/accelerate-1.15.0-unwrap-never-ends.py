"""A model that prepare_pippy has prepared cannot be unwrapped: the call never ends.

What: ``unwrap_model(model, keep_fp32_wrapper=False)`` of an accelerator, or ``extract_model_from_parallel``, is to
  take off what was put around the forward. Of a model that prepare_pippy has prepared it never returns, and keeps a
  processor busy. A model that the accelerator has prepared for mixed precision gets its own forward back.
Where: accelerate 1.15.0, inference.py, prepare_pippy (line 183); utils/other.py, extract_model_from_parallel (line
  341), which goes from a function to its ``__wrapped__`` until it finds the model's original forward.
Why: the new forward's ``__wrapped__`` is the new forward itself, as a method, whose ``__wrapped__`` is itself again.
  The original forward is in no place of that chain.
Promise: the comment in prepare_pippy: "To act like a decorator so that it can be popped when doing
  `extract_model_from_parallel`".
Requirement: none (nothing unwraps).
Schedules: GPipe, evaluation (it has nothing else).
Known: no thread about this is known.
Possible fix: ``forward.__wrapped__ = model._original_forward``.
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
CASES = (("mixed precision",), ("prepare_pippy",))
SECONDS = 5  # of processor time that unwrapping may take; it takes microseconds


def run(rank, how):
    import signal

    from accelerate import Accelerator
    from accelerate.inference import prepare_pippy
    from accelerate.utils import extract_model_from_parallel

    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).eval(), torch.randn(2, 3)
    original = model.forward
    if how == "prepare_pippy":
        model = prepare_pippy(model, split_points=["1"], example_args=(batch[:1],), num_chunks=CHUNKS)
    else:
        model = Accelerator(cpu=True, mixed_precision="bf16").prepare_model(model, evaluation_mode=True)

    def late(*_):
        raise TimeoutError(f"not unwrapped after {SECONDS} s of processor time")

    signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    unwrapped = extract_model_from_parallel(model, keep_fp32_wrapper=False)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    same = getattr(unwrapped.forward, "__func__", None) is original.__func__
    return f"has its own forward {'again' if same else 'no more'}"


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
        print(f"prepared by {case[0]}, then unwrapped")
        found.append(told_by(WORLD, case))
        for rank, told in enumerate(found[-1]):
            print(f"  rank {rank} {told}")
    if not found[0][0].endswith("again"):
        sys.exit("inconclusive: the control is not unwrapped either")
    print(f"unwrapping: {'never ends' if 'not unwrapped' in found[1][0] else 'no difference'}")


if __name__ == "__main__":
    main()
