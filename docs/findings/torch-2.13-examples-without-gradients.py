"""Stages that are given example tensors as torch.empty makes them send no gradients back.

What: PipelineStage takes example tensors as input_args and output_args. If these need no gradient, which is so for what
  torch.empty, torch.zeros and torch.randn return, training ends in "grad can be implicitly created only for scalar
  outputs" on one rank, and others wait or return. Where a stage hands over a single element there is no error: the
  stages before the last one get wrong gradients or, under zero-bubble schedules, none, as does the last. With the same
  examples 2.11 trains; since 2.12 they must need a gradient, which no documentation says.
Where: torch 2.13.0, distributed/pipelining/stage.py, _retrieve_recv_activations, line 661, and _utils.py,
  _derive_grad_metas, line 341.
Why: an activation needs a gradient, and one is sent back, only if the example for it does. In the dry run, which
  there is without examples, this is what the model showed; here it is what the user happened to write.
Requirement: FWD-32.
Schedules: all; two stages or more, with input_args and output_args.
Possible fix: with has_backward, take floating-point examples for tensors that need a gradient, as 2.11 did; or refuse
  examples whose flags differ from those of what is computed.
"""

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
from torch.distributed.pipelining.schedules import get_schedule_class

WORLD, M = 2, 4
SCHEDULES = ("GPipe", "ZBVZeroBubble")


def model(num_stages, width):
    torch.manual_seed(0)
    return [nn.Linear(width, width, dtype=torch.float64) for _ in range(num_stages)]


def batch(width):
    torch.manual_seed(1)
    return torch.randn(M, width, dtype=torch.float64), torch.randn(M, width, dtype=torch.float64)


def run(rank, name, width, needs):
    """What a training step does on this rank."""
    single = name == "GPipe"
    num_stages = WORLD if single else 2 * WORLD
    last = num_stages - 1
    owned = [rank] if single else [rank, last - rank if name.startswith("ZBV") else rank + WORLD]
    modules, right, (x, y) = model(num_stages, width), model(num_stages, width), batch(width)
    nn.functional.mse_loss(nn.Sequential(*right)(x), y).backward()

    def example():
        return torch.empty(1, width, dtype=torch.float64, requires_grad=needs)

    stages = [
        PipelineStage(modules[s], s, num_stages, torch.device("cpu"), example(), example()) for s in owned
    ]
    schedule = get_schedule_class(name)(stages[0] if single else stages, M, loss_fn=nn.functional.mse_loss)
    args, target = (x,) if 0 in owned else (), {"target": y} if last in owned else {}
    try:
        schedule.step(*args, **target)
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        return f"raises {type(error).__name__}: {str(error)[:80]}"
    found = {s: modules[s].weight.grad for s in owned}
    missing = [s for s in owned if found[s] is None]
    wrong = [s for s in owned if s not in missing and not torch.allclose(found[s], right[s].weight.grad)]
    told = [f"no gradient in stage {s}" for s in missing] + [f"a wrong gradient in stage {s}" for s in wrong]
    return f"returns with {' and '.join(told) or 'right gradients'}"


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
        while not all(file.exists() for file in files) and time.monotonic() - (ended or started + 55) < 5:
            if ended is None and any(file.exists() for file in files):
                ended = time.monotonic()
            time.sleep(0.1)
        found = [file.read_text() if file.exists() else "waits" for file in files]
        for process in processes:
            process.kill()
            process.join()
    if ended is None and "waits" in found:
        sys.exit("inconclusive: no rank gave a result")
    return found


def main():
    for words, width, needs in (
        ("examples that need a gradient", 3, True),
        ("examples as torch.empty makes them", 3, False),
        ("the same, where stages hand over one element", 1, False),
    ):
        print(words)
        for name in SCHEDULES:
            for rank, found in enumerate(outcomes((name, width, needs))):
                print(f"  {name}, rank {rank}: {found}")


if __name__ == "__main__":
    main()
