"""The dry run refuses stages with reentrant activation checkpoints, under every schedule.

What: a stage that is not the first and uses torch.utils.checkpoint with use_reentrant=True cannot be trained: its rank
  raises in the first step, before a microbatch has run, that the checkpoint "is incompatible with .grad() or passing an
  `inputs` parameter to .backward()", and the other ranks wait. The user calls neither. Schedules with full backwards
  are right with declared shapes, since they call .backward() themselves; those that split the backward raise then, too,
  in their first backward. eval() is right.
Where: torch 2.13.0, distributed/pipelining/stage.py, PipelineStage._compute_input_grads, line 1837, called by
  _backward_metadata_inference, lines 2021 and 2076; _backward.py, _autograd_grad_for_inputs, line 163.
Why: shape inference goes backwards through the real stage by torch.autograd.grad, which reentrant checkpoints do not
  support (so their documentation), only to see which inputs get a gradient, and of which shape.
Requirement: none (near TRN-11, which an error on every rank meets).
Schedules: all, unless every stage has input_args and output_args; split backward in any case.
Known: https://github.com/NVIDIA-NeMo/Automodel/pull/3257 (the same error; worked around there by use_reentrant=False).
  The dry run has a backward since https://github.com/pytorch/pytorch/pull/177728.
Possible fix: take the gradients' shapes and dtypes from the inputs that need one, as is done where none comes out, and
  go backwards for DTensors only.
"""

import logging
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.utils.checkpoint import checkpoint

WORLD, M, WIDTH = 2, 4, 3
WAITS = "waits for the other rank"
SCHEDULES = (
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)
CASES = (
    ("step", "inferred", "not reentrant"),
    ("step", "declared", "reentrant"),
    ("step", "inferred", "reentrant"),
)


class Stage(nn.Module):
    """The first stage has no checkpoint, as an embedding has none."""

    def __init__(self, s, reentrant):
        super().__init__()
        self.inner, self.first, self.reentrant = nn.Linear(WIDTH, WIDTH), s == 0, reentrant

    def forward(self, x):
        if self.first:
            return self.inner(x)
        return checkpoint(self.compute, x, use_reentrant=self.reentrant)

    def compute(self, x):
        return torch.tanh(self.inner(x))


def run(rank, name, how, shapes, kind):
    """What the first step does on this rank."""
    cls = get_schedule_class(name)
    several, v_shaped = issubclass(cls, PipelineScheduleMulti), name in ("ZBVZeroBubble", "DualPipeV")
    n = 2 * WORLD if several else WORLD
    owned = [rank, n - 1 - rank] if v_shaped else list(range(rank, n, WORLD))
    torch.manual_seed(0)
    modules = [Stage(s, kind == "reentrant") for s in range(n)]
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
        getattr(schedule, how)(*args, **target)
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        if "gloo" in str(error):
            return "loses the connection to the other rank"
        return f"raises {type(error).__name__}: {str(error).strip()[:83]}"
    if how == "eval":
        return "returns"
    wrong = []
    for s in owned:
        actual = modules[s].inner.weight.grad
        if actual is None or not torch.allclose(actual, right[s], atol=1e-5):
            wrong.append(s)
    return f"returns with {f'wrong gradients in stages {wrong}' if wrong else 'right gradients'}"


def worker(rank, folder, case):
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


def outcomes(case):
    """Per rank; a rank that has shown nothing 5 s after another one has ended waits for it."""
    with tempfile.TemporaryDirectory() as folder:
        make = mp.get_context("fork").Process  # torch is imported once
        processes = [make(target=worker, args=(rank, folder, case)) for rank in range(WORLD)]
        for process in processes:
            process.start()
        files = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
        started, ended = time.monotonic(), None
        while not all(file.exists() for file in files) and time.monotonic() - (ended or started + 25) < 5:
            if ended is None and any(file.exists() for file in files):
                ended = time.monotonic()
            time.sleep(0.1)
        found = [file.read_text() if file.exists() else WAITS for file in files]
        for process in processes:
            process.kill()
            process.join()
    if WAITS in found and not any("raises" in text for text in found):
        sys.exit("inconclusive: a rank gave no result")
    return found


def main():
    print("expected: no error, and right gradients")
    for how, shapes, kind in (("eval", "inferred", "reentrant"), *CASES):
        print(f"checkpoints {kind}, {shapes} shapes, {how}()")
        for name in SCHEDULES:
            if how == "eval" and name in ("ZBVZeroBubble", "DualPipeV"):
                continue  # they cannot evaluate
            for rank, found in enumerate(outcomes((name, how, shapes, kind))):
                print(f"  {name}, rank {rank}: {found}")


if __name__ == "__main__":
    main()
