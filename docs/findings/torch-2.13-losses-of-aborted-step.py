"""A step that raised in the loss function leaves its losses behind, and the next training step uses them.

What: an evaluation whose loss function raises at the last microbatch (a bad sample). The caller catches it and goes
  on: only the last stage's rank sees the error, and all messages of the evaluation have been sent and received, so
  that other ranks return from eval() as usual. The next training step takes the losses of the aborted evaluation
  for its backward, and the fourth is the first of its own: with m = 4 the three of the aborted evaluation and
  microbatch 0. In eval() without torch.no_grad() the last stage's gradient is that of the other batch and
  microbatch 0; under torch.no_grad(), where these losses have no graph, that of microbatch 0 alone. Stages before
  it get 0. Nothing is raised, unless a list for losses is passed: then the step raises at its end ("Expecting 4
  losses but got 7").
Where: torch 2.13.0, distributed/pipelining/schedules.py, _maybe_compute_loss, line 304 (appends), _maybe_get_loss,
  line 309 (takes by position), and _update_losses, line 339 (the only place that clears).
Why: the list of losses is cleared at the end of a step that succeeds, and not at the beginning of one.
Requirement: none (near ERR-11).
Schedules: all with a loss function; shown under GPipe and 1F1B.
Possible fix: clear the list of losses where a step begins.
"""

import logging
import sys
import tempfile
import time
import warnings
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

WORLD, M = 2, 4
WAITS = "waits for the other rank"
SCHEDULES = ("GPipe", "1F1B")
# what is said of a case: the evaluation raises, it runs under no_grad(), the training step is given a list for losses
CASES = {
    "the evaluation before the step succeeds": (False, False, False),
    "the evaluation raises at the last microbatch": (True, False, False),
    "the same, and the step is given a list for losses": (True, False, True),
    "the same as the second, evaluated under no_grad()": (True, True, False),
}


def shown(module):
    gradient = module.weight.grad
    return None if gradient is None else round(float(gradient.norm()), 4)


def run(rank, name, raises, no_grad, with_losses):
    """The gradient on this rank of a training step after an evaluation of another batch."""
    torch.manual_seed(1)
    modules = [nn.Linear(4, 4, dtype=torch.float64) for _ in range(WORLD)]
    x, other_x = (torch.randn(2 * M, 4, dtype=torch.float64) for _ in range(2))
    y, other_y = (torch.randint(4, (2 * M,)) for _ in range(2))
    bad = torch.tensor(-1)  # a target that the loss function refuses

    def loss_fn(output, target):
        if (target == bad).any():
            raise ValueError("bad sample")
        return nn.functional.cross_entropy(output.float(), target)

    loss_fn(nn.Sequential(*modules)(x), y).backward()
    expected = shown(modules[rank])
    for module in modules:
        module.zero_grad()

    used = slice(0, 2 * (M - 1))  # the microbatches before the one that raises
    aborted = [] if no_grad else zip(other_x[used].chunk(M - 1), other_y[used].chunk(M - 1), strict=True)
    for part_x, part_y in [(x[:2], y[:2]), *aborted]:
        (loss_fn(nn.Sequential(*modules)(part_x), part_y) / M).backward()
    other = shown(modules[rank])
    for module in modules:
        module.zero_grad()

    stage = PipelineStage(modules[rank], rank, WORLD, torch.device("cpu"))
    schedule = get_schedule_class(name)(stage, M, loss_fn=loss_fn)

    def call(function, x, y, **options):
        return function(
            *((x,) if rank == 0 else ()), **({"target": y} if rank == WORLD - 1 else {}), **options
        )

    call(schedule.eval, other_x, other_y)
    if raises:
        other_y[-1] = bad
    with torch.no_grad() if no_grad else nullcontext():
        try:
            call(schedule.eval, other_x, other_y)
            told = "eval() returns"
        except ValueError as error:  # what the loss function raises; a careful caller skips the batch
            told = f"eval() raises '{error}'"
    dist.barrier()  # all ranks have done their part of the evaluation
    words = ""
    try:
        call(schedule.step, x, y, **({"losses": []} if with_losses else {}))
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        words = f", step() raises {type(error).__name__}: {str(error)[:60]}"
    actual = shown(modules[rank])
    source = "microbatch 0 alone" if no_grad else "the evaluation's losses and microbatch 0"
    mixed = f" (that of {source})" if raises and actual == other else ""
    return f"{told}; gradient: expected {expected}, actual {actual}{mixed}{words}"


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
    logging.disable(logging.CRITICAL)
    print("sizes of the gradients of a training step after an evaluation of another batch")
    for words, case in CASES.items():
        print(words)
        for name in SCHEDULES:
            found = outcomes((name, *case))
            if found.count(WAITS) == WORLD or (
                WAITS in found and not any("step() raises" in text for text in found)
            ):
                sys.exit("inconclusive: a rank gave no result")
            for rank, text in enumerate(found):
                print(f"  {name}, rank {rank}: {text}")


if __name__ == "__main__":
    main()
