"""Since 2.14, a stage with an expanded buffer cannot be run: the dry run wants to copy the buffer back.

What: a stage that has registered a mask or positions by `expand()`, or a buffer that was made in inference mode, raises
  in the first step, though nothing changes the buffer: "unsupported operation: more than one element of the written-to
  tensor refers to a single memory location", "Inplace update to inference tensor outside InferenceMode is not allowed".
  The other ranks wait. The same stages run without a pipeline, with declared shapes, and under torch 2.13.
Where: torch 2.14.1, distributed/pipelining/stage.py, PipelineStage._post_metadata_inference_cleanup, line 2246.
Why: before shape inference every buffer is cloned, and afterwards copied into itself, whether it changed or not; memory
  in which several elements lie in one place cannot be written to, and inference tensors only in inference mode.
Requirement: TRN-9.
Schedules: all, unless every stage has input_args and output_args.
Known: no thread about this is known; the copies are of https://github.com/pytorch/pytorch/pull/188558.
Possible fix: copy only what has changed (its version did), or register the tensors again that were buffers before.
"""

import logging
import os
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

WORLD, M, WIDTH = 2, 4, 3
WAITS = "waits for the other rank"
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B")
KINDS = ("whole", "expanded", "made in inference mode")


class Stage(nn.Module):
    """Multiplies by a buffer of ones, which nothing changes."""

    def __init__(self, kind):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        ones = torch.ones(WIDTH)
        if kind == "expanded":
            ones = torch.ones(1).expand(WIDTH)
        if kind == "made in inference mode":
            with torch.inference_mode():
                ones = torch.ones(WIDTH)
        self.register_buffer("mask", ones)

    def forward(self, x):
        return torch.tanh(self.inner(x)) * (self.mask == 1)


def run(rank, name, kind, shapes):
    """What the first step does on this rank; the last stage alone has the buffer."""
    cls = get_schedule_class(name)
    several = issubclass(cls, PipelineScheduleMulti)
    n = 2 * WORLD if several else WORLD
    owned = list(range(rank, n, WORLD))
    torch.manual_seed(0)
    modules = [Stage(kind if s == n - 1 else "whole") for s in range(n)]
    x, y = torch.randn(2 * M, WIDTH), torch.randn(2 * M, WIDTH)
    nn.functional.mse_loss(nn.Sequential(*modules)(x), y).backward()  # the same modules without a pipeline
    right = {s: modules[s].inner.weight.grad for s in owned}
    for module in modules:
        module.zero_grad()
    stages = []
    for s in owned:
        examples = {}
        if shapes == "declared":
            examples["input_args"] = torch.zeros(2, WIDTH, requires_grad=s > 0)
            examples["output_args"] = torch.zeros(2, WIDTH, requires_grad=True)
        stages.append(PipelineStage(modules[s], s, n, torch.device("cpu"), **examples))
    schedule = cls(stages if several else stages[0], M, loss_fn=nn.functional.mse_loss)
    args, target = (x,) if 0 in owned else (), {"target": y} if n - 1 in owned else {}
    try:
        schedule.step(*args, **target)
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        return f"raises {type(error).__name__}: {str(error).strip()[:83]}"
    wrong = [s for s in owned if not torch.allclose(modules[s].inner.weight.grad, right[s], atol=1e-5)]
    return f"returns with {f'wrong gradients in stages {wrong}' if wrong else 'right gradients'}"


def worker(rank, folder, *case):
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    Path(folder, f"{rank}.part").write_text(run(rank, *case))
    Path(folder, f"{rank}.part").rename(Path(folder, f"{rank}.txt"))
    time.sleep(60)  # a rank that ends would break the connection on which another waits


def outcomes(*case):
    """Per rank; ranks that have shown nothing after 8 s wait."""
    with tempfile.TemporaryDirectory() as folder:
        make = mp.get_context("fork").Process  # torch is imported once
        processes = [make(target=worker, args=(rank, folder, *case)) for rank in range(WORLD)]
        for process in processes:
            process.start()
        files = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
        started = time.monotonic()
        while not all(file.exists() for file in files) and time.monotonic() - started < 8:
            time.sleep(0.1)
        found = [file.read_text() if file.exists() else WAITS for file in files]
        for process in processes:
            process.kill()
            process.join()
    return found


def main():
    print("expected: no error, and right gradients")
    for kind, shapes in (*((kind, "inferred") for kind in KINDS), ("expanded", "declared")):
        print(f"a buffer that is {kind}, {shapes} shapes")
        for name in SCHEDULES:
            for rank, found in enumerate(outcomes(name, kind, shapes)):
                print(f"  {name}, rank {rank}: {found}")


if __name__ == "__main__":
    main()
