"""A schedule without a loss on the stages of a training schedule ends the training of all stages but the last.

What: train with one schedule and validate with another one without a loss function, both of the same stage objects,
  as in ScheduleGPipe(stage, m). Once the second one has run, each later training step gives the stages before the
  last a gradient of exactly 0; under zero-bubble schedules every stage but the first gets None. Losses are exact, and
  there is no error. Validation by the training schedule's own eval() is right, and so is a second set of stage
  objects that is made of the same modules.
Where: torch 2.13.0, distributed/pipelining/schedules.py, _initialize_pp_stages, line 420; stage.py,
  _prepare_forward_infra, line 2238, and _retrieve_recv_activations, line 661.
Why: receive buffers and metadata belong to the stage, but each schedule decides by flags of its own whether they have
  to be made. The second schedule makes them anew, for activations that need no gradient. The first one finds its own
  flags unchanged and trains with them.
Requirement: LIF-9 (LIF-1 evaluates with the schedule that trains).
Schedules: GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble; two stages or more. ZBVZeroBubble and
  DualPipeV raise in a schedule without a loss before they get there.
Possible fix: keep the flags in the stage; or refuse a stage that another schedule has prepared.
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
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
CASES = (
    "eval() of the training schedule",
    "a schedule without a loss, on stage objects of its own",
    "a schedule without a loss, on the same stage objects",
)


def sizes(modules, owned):
    """The sizes of the gradients by stage, to four digits, so that 0.0 is exactly 0; None where there is none."""
    found = {s: modules[s].weight.grad for s in owned}
    return {s: None if found[s] is None else float(f"{found[s].norm():.4g}") for s in owned}


def run(rank, name, case):
    """The gradients on this rank of a training step before a validation and of one after it."""
    cls = get_schedule_class(name)
    several = issubclass(cls, PipelineScheduleMulti)
    n = 2 * WORLD if several else WORLD
    owned = range(rank, n, WORLD)
    torch.manual_seed(0)
    modules = [nn.Linear(3, 3, dtype=torch.float64) for _ in range(n)]
    x, y = (torch.randn(2 * M, 3, dtype=torch.float64) for _ in range(2))
    loss = nn.functional.mse_loss(nn.Sequential(*modules)(x), y)
    loss.backward()
    expected = sizes(modules, owned)

    def make_stages():
        return [PipelineStage(modules[s], s, n, torch.device("cpu")) for s in owned]

    def make_schedule(stages, loss_fn):
        return cls(stages if several else stages[0], M, loss_fn=loss_fn)

    stages = make_stages()
    training = make_schedule(stages, nn.functional.mse_loss)
    args, target = (x,) if 0 in owned else (), {"target": y} if n - 1 in owned else {}

    def train():
        for module in modules:
            module.zero_grad()
        losses = []
        training.step(*args, **target, losses=losses)
        found = sizes(modules, owned)
        words = "the same" if found == expected else str(found)
        if losses:
            words += ", exact loss" if torch.allclose(torch.stack(losses).mean(), loss) else ", wrong loss"
        return words

    told = f"expected {expected}, before: "
    try:
        told += train() + ", after: "
        with torch.no_grad():
            if "eval()" in case:
                training.eval(*args, **target)
            else:
                make_schedule(make_stages() if "of its own" in case else stages, None).step(*args)
        return told + train()
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        return told + f"raises {type(error).__name__}: {str(error)[:80]}"


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
    print("sizes of the gradients by stage, of a training step before a validation and of one after it")
    print("expected of both: the same without a pipeline")
    for case in CASES:
        print(case)
        for name in SCHEDULES:
            found = outcomes((name, case))
            if found.count(WAITS) == WORLD or (
                WAITS in found and not any("raises" in text for text in found)
            ):
                sys.exit("inconclusive: a rank gave no result")
            for rank, text in enumerate(found):
                print(f"  {name}, rank {rank}: {text}")


if __name__ == "__main__":
    main()
