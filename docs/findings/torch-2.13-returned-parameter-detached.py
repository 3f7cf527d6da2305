"""A parameter that the last stage returns beside its output is detached and no longer trained.

What: a last stage that returns a parameter for the loss function to use, such as a learned temperature: (logits,
  temperature). The step makes the parameter need no gradient, for good. In the first step its gradient is that of
  the first microbatch instead of all; from the second step on there is none. There is no error under schedules with
  full backwards. There a clone of the parameter is right. Under zero-bubble schedules the first step raises on the
  last stage's rank, with a clone, too, and other ranks wait: the weight part of the backward needs logits that are
  detached.
Where: torch 2.13.0, distributed/pipelining/stage.py, backward_one_chunk, line 1060.
Why: after the backward of a microbatch everything that the last stage returned is detached in place, to free
  memory, unless it is a view. detach_() of a parameter sets its requires_grad to False. With a split backward this
  happens after the input part, before the weight part.
Requirement: FWD-23.
Schedules: GPipe, 1F1B, Interleaved1F1B, LoopedBFS (wrong gradients); InterleavedZeroBubble, ZBVZeroBubble,
  DualPipeV (an error); two stages or more.
Possible fix: detach only what has a grad_fn, and after the weight part.
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

WORLD, M = 2, 4
WAITS = "waits for the other rank"
CASES = {
    "the last stage returns a clone of its parameter": ("GPipe", "InterleavedZeroBubble"),
    "the last stage returns its parameter": ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble"),
}


class Last(nn.Module):
    """Returns logits and the temperature that the loss function divides them by."""

    def __init__(self, clone):
        super().__init__()
        self.linear = nn.Linear(3, 3, dtype=torch.float64)
        self.temperature = nn.Parameter(torch.full((1,), 2.0, dtype=torch.float64))
        self.clone = clone

    def forward(self, x):
        return self.linear(x), self.temperature.clone() if self.clone else self.temperature


def loss_fn(output, target):
    logits, temperature = output
    return nn.functional.mse_loss(logits / temperature, target)


def shown(gradient):
    return None if gradient is None else round(float(gradient), 4)


def run(rank, name, clone):
    """What two training steps do on this rank."""
    cls = get_schedule_class(name)
    several = issubclass(cls, PipelineScheduleMulti)
    n = 2 * WORLD if several else WORLD
    owned = range(rank, n, WORLD)
    torch.manual_seed(0)
    modules = [*(nn.Linear(3, 3, dtype=torch.float64) for _ in range(n - 1)), Last(clone)]
    x, y = (torch.randn(2 * M, 3, dtype=torch.float64) for _ in range(2))
    temperature = modules[-1].temperature
    loss_fn(nn.Sequential(*modules)(x), y).backward()
    expected = shown(temperature.grad)
    for module in modules:
        module.zero_grad()
    (loss_fn(nn.Sequential(*modules)(x[:2]), y[:2]) / M).backward()
    expected = f"expected {expected} in both steps ({shown(temperature.grad)} of it from microbatch 0)"

    stages = [PipelineStage(modules[s], s, n, torch.device("cpu")) for s in owned]
    schedule = cls(stages if several else stages[0], M, loss_fn=loss_fn)
    args, target = (x,) if 0 in owned else (), {"target": y} if n - 1 in owned else {}
    actual = []
    try:
        for _ in range(2):
            for module in modules:
                module.zero_grad()
            # the outputs of microbatches are not to be merged: the temperature has no batch dimension
            schedule.step(*args, **target, return_outputs=False)
            actual.append(shown(temperature.grad))
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        words = f"raises in step {len(actual) + 1}, {type(error).__name__}: {str(error)[:60]}"
        return f"{expected}, {words}" if n - 1 in owned else words
    if n - 1 not in owned:
        return "returns"
    needs = f"requires_grad is {temperature.requires_grad}, expected True"
    return f"{expected}, actual {actual[0]}, then {actual[1]}; {needs}"


def worker(rank, folder, case):
    warnings.simplefilter("ignore")
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
    return found


def main():
    logging.disable(logging.CRITICAL)  # the table of operations that a schedule logs when it raises
    print("gradient of the parameter in two steps; expected: without a pipeline")
    for words, names in CASES.items():
        print(words)
        for name in names:
            found = outcomes((name, "clone" in words))
            if found.count(WAITS) == WORLD or (
                WAITS in found and not any("raises" in text for text in found)
            ):
                sys.exit("inconclusive: a rank gave no result")
            for rank, text in enumerate(found):
                print(f"  {name}, rank {rank}: {text}")


if __name__ == "__main__":
    main()
