"""A table in which the last stage takes microbatches in another order is accepted, and computes something else.

What: a table that a user loads into torch's runtime (torchtitan: pipeline_parallel_schedule_csv) may have the
  microbatches of a stage in any order: torch's checks accept it. If the last stage has them in another order than
  0, 1, 2, …, outputs and losses come back in the order of the table, without an error, and the backward takes the
  loss of another microbatch: the last rank raises while the others wait for it.
Where: torch 2.13.0, distributed/pipelining/schedules.py, _maybe_compute_loss and _maybe_get_loss, lines 299 to 317,
  and stage.py, forward_one_chunk, where output_chunks grows.
Why: losses and outputs are appended as they are computed, and taken by the microbatch's number.
Requirement: SCH-11.
Schedules: a table of the user's own, for two microbatches or more.
Possible fix: keep losses and outputs by microbatch, as stages keep everything else; or refuse such a table when it is
  loaded (_validate_schedule).
"""

import csv
import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WORLD = 2
M = 2
IN_ORDER = (("0F0", "0F1", "0B0", "0B1"), ("1F0", "1F1", "1B0", "1B1"))
IN_REVERSE = (("0F1", "0F0", "0B1", "0B0"), ("1F1", "1F0", "1B1", "1B0"))


def model():
    torch.manual_seed(0)
    return [nn.Linear(1, 1, bias=False, dtype=torch.float64) for _ in range(WORLD)]


def batch():
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    return x, torch.tensor([[0.5], [3.0]], dtype=torch.float64)


def of_torch(rank, table, folder, *, training):
    """Output and losses of the last rank, and the gradient, as far as this rank has them; or the error."""
    path = Path(folder, f"table-{rank}.csv")
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(table)
    module, (x, y) = model()[rank], batch()
    stage = PipelineStage(module, rank, WORLD, torch.device("cpu"))
    schedule = _PipelineScheduleRuntime([stage], M, loss_fn=nn.functional.mse_loss)
    schedule._load_csv(str(path))
    losses = []
    act = schedule.step if training else schedule.eval
    try:
        output = act(x) if rank == 0 else act(target=y, losses=losses)
    except RuntimeError as error:
        return [f"raises {type(error).__name__}: {' '.join(str(error).split())[:33]} …"]
    return told(rank, output, losses, module.weight.grad)


def of_the_whole_model(rank, *, training):
    modules, (x, y) = model(), batch()
    output = nn.Sequential(*modules)(x)
    losses = [nn.functional.mse_loss(output[k], y[k]) for k in range(M)]
    if training:
        torch.stack(losses).mean().backward()
    return told(rank, output, losses, modules[rank].weight.grad)


def told(rank, output, losses, gradient):
    found = []
    if rank == WORLD - 1:
        found = [f"output {rounded(output)}", f"losses {rounded(torch.stack(losses))}"]
    return [*found, *([] if gradient is None else [f"gradient {gradient.item():.3f}"])]


def rounded(values):
    return [round(one, 3) for one in values.detach().flatten().tolist()]


def run(rank, folder):
    lines = []
    # a step that one rank alone cannot do comes last: the other rank waits for it until the group's timeout
    for name, table, training in (
        ("in order", IN_ORDER, True),
        ("in reverse", IN_REVERSE, False),
        ("in reverse", IN_REVERSE, True),
    ):
        what = f"{name}, {'training' if training else 'evaluation'}, rank {rank}"
        right, actual = (
            of_the_whole_model(rank, training=training),
            of_torch(rank, table, folder, training=training),
        )
        if right or actual:
            lines.append(f"{what}: expected {', '.join(right)}; actual {', '.join(actual)}")
    return lines


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=10),
    )
    lines = run(rank, folder)
    Path(folder, f"{rank}.txt").write_text("".join(f"{line}\n" for line in lines))
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=60)
            process.kill()
        for rank in range(WORLD):
            path = Path(folder, f"{rank}.txt")
            if not path.exists():
                sys.exit(f"inconclusive: a rank gave no result ({path.name})")
            print(path.read_text(), end="")


if __name__ == "__main__":
    main()
