"""A stage that is frozen in the first training step cannot be trained in a later one.

What: freeze the first stage, train a step, then unfreeze it (gradual unfreezing, as in fine-tuning). The next step
  ends in "grad can be implicitly created only for scalar outputs" on the rank of the unfrozen stage; other ranks
  return or wait for it. If one element crosses the boundary there is no error, and the gradients of the unfrozen
  stage are wrong: 1.0 is used for the gradient that is not sent. Freezing later is right. So is unfreezing if eval()
  is called before the next step. The stages have no input_args and output_args; this is not about examples that need
  no gradient.
Where: torch 2.13.0, distributed/pipelining/stage.py: _retrieve_recv_activations, line 661, and
  _create_grad_recv_info, line 2321. Both use metadata which is only made again after a switch between step() and
  eval() (schedules.py, _initialize_pp_stages, line 420).
Why: the dry run before the first step records whether each boundary tensor needs a gradient. Later steps use the
  record instead of what the stage returns: the received activation needs no gradient, and the sending stage expects
  none.
Requirement: TRN-28.
Schedules: all that train; two stages or more.
Possible fix: with has_backward, let every floating-point activation need a gradient, as 2.11 did; or refuse a step in
  which an output needs a gradient and the metadata says that it does not.
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
from torch.distributed.pipelining.schedules import get_schedule_class

WORLD, M = 2, 4
SCHEDULES = ("GPipe", "Interleaved1F1B")
WAITS = "waits for the other rank"
# what is said of a case: width, first stage trainable in step 1 and in step 2, eval() between them
CASES = {
    "first stage trainable in both steps": (3, True, True, False),
    "first stage trainable in step 1, frozen in step 2": (3, True, False, False),
    "first stage frozen in step 1, then eval(), trainable in step 2": (3, False, True, True),
    "first stage frozen in step 1, trainable in step 2": (3, False, True, False),
    "the same, where stages hand over one element": (1, False, True, False),
}


def size_of(module):
    gradient = module.weight.grad
    return None if gradient is None else round(float(gradient.norm()), 4)


def run(rank, name, width, first_step, second_step, evaluate):
    """The gradients of the second step on this rank."""
    single = name == "GPipe"
    num_stages = WORLD if single else 2 * WORLD
    owned = range(rank, num_stages, WORLD)
    torch.manual_seed(0)
    modules = [nn.Linear(width, width, dtype=torch.float64) for _ in range(num_stages)]
    x, y = (torch.randn(M, width, dtype=torch.float64) for _ in range(2))

    modules[0].requires_grad_(second_step)
    nn.functional.mse_loss(nn.Sequential(*modules)(x), y).backward()
    expected = {s: size_of(modules[s]) for s in owned}

    stages = [PipelineStage(modules[s], s, num_stages, torch.device("cpu")) for s in owned]
    schedule = get_schedule_class(name)(stages[0] if single else stages, M, loss_fn=nn.functional.mse_loss)
    args, target = (x,) if 0 in owned else (), {"target": y} if num_stages - 1 in owned else {}
    try:
        modules[0].requires_grad_(first_step)
        schedule.step(*args, **target)
        if evaluate:
            schedule.eval(*args, **target)
        modules[0].requires_grad_(second_step)
        for module in modules:
            module.zero_grad()
        schedule.step(*args, **target)
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        return f"expected {expected}, raises {type(error).__name__}: {str(error)[:60]}"
    return f"expected {expected}, actual { ({s: size_of(modules[s]) for s in owned}) }"


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
    print("sizes of the gradients after step 2, by stage; expected: the same without a pipeline")
    for words, case in CASES.items():
        print(words)
        for name in SCHEDULES:
            found = outcomes((name, *case))
            if found.count(WAITS) == WORLD or (
                WAITS in found and not any("raises" in text for text in found)
            ):
                sys.exit("inconclusive: a rank gave no result")
            for rank, text in enumerate(found):
                print(f"  {name}, rank {rank}: {text}")


if __name__ == "__main__":
    main()
