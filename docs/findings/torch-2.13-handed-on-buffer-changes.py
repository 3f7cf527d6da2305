"""A buffer that a stage hands on and updates in place arrives with a later microbatch's value.

What: a stage counts its microbatches in a buffer, which it updates in place and hands on (self.n.add_(1); return x,
  self.n). The next stage computes with values that the buffer gets in later microbatches, as does any tensor that the
  stage keeps and changes. If all forwards come before the next stage's (LoopedBFS on one rank) it always gets the
  last value; on two ranks under GPipe it does if it is slower than the stage before it. Nothing is raised. Microbatch
  by microbatch without a pipeline, every value is used before the next one is written. Right if a clone is handed on.
Where: torch 2.13.0, distributed/pipelining/stage.py, set_local_fwd_input, line 412, and get_fwd_send_ops, line 498;
  the sends of GPipe are waited for after the last forward only (schedules.py, lines 917, 918 and 927).
Why: what is handed on is tensor.detach(), which has the memory of the stage's buffer, and it is read later: when the
  next stage on the rank is run, or when the receiver of the send is ready. The documentation does not say that it
  must stay.
Requirement: none.
Schedules: those that run a stage's next forward before its last output was used: GPipe; LoopedBFS; others where a
  rank's stages have several forwards in a row. Not 1F1B, which waits for a send before the next one.
Possible fix: hand on a copy of outputs that share memory with the module's buffers or parameters; or say in the
  documentation of PipelineStage that outputs must not be changed after forward() returned.
"""

import os
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

M = 4
ONE_RANK, TWO_RANKS = ("LoopedBFS", "Interleaved1F1B"), ("GPipe", "1F1B")


class Counts(nn.Module):
    """Hands on how many microbatches it has seen."""

    def __init__(self, clones, waits=0.0):
        super().__init__()
        self.clones, self.waits = clones, waits
        self.scale = nn.Parameter(torch.zeros(1))
        self.register_buffer("n", torch.zeros(1, 1))

    def forward(self, x):
        if self.n == 1:
            time.sleep(self.waits)  # so that the next stage has certainly received the first microbatch
        self.n.add_(1)
        return x * self.scale, self.n.clone() if self.clones else self.n


class Adds(nn.Module):
    def __init__(self, waits=0.0):
        super().__init__()
        self.waits = waits

    def forward(self, x, n):
        time.sleep(self.waits)
        return x + n


def expected():
    first, second = Counts(clones=False), Adds()
    return [float(second(*first(x))) for x in torch.zeros(M, 1).chunk(M)]


def example(needs=False):
    return torch.zeros(1, 1, requires_grad=needs)


def run(rank, world):
    lines = []
    for name in ONE_RANK if world == 1 else TWO_RANKS:
        for clones in (False, True):
            waits = 0.0 if world == 1 else 0.5
            modules = Counts(clones, waits), Adds(2 * waits)
            owned = [0, 1] if world == 1 else [rank]
            between = (example(True), example())
            examples = [
                {"input_args": example(), "output_args": between},
                {"input_args": between, "output_args": example(True)},
            ]
            stages = [PipelineStage(modules[s], s, 2, torch.device("cpu"), **examples[s]) for s in owned]
            schedule = get_schedule_class(name)(
                stages if world == 1 else stages[0], M, loss_fn=nn.functional.mse_loss
            )
            x = torch.zeros(M, 1)
            args, target = (x,) if 0 in owned else (), {"target": x} if 1 in owned else {}
            if world > 1:
                dist.barrier()
            try:
                found = schedule.step(*args, **target)
                told = f"actual {None if found is None else found.flatten().tolist()}"
            except Exception as error:
                told = f"raises {type(error).__name__}: {str(error).strip()[:60]}"
            if 1 in owned:
                what = "a clone of the buffer" if clones else "the buffer"
                ranks = "one rank" if world == 1 else "two ranks, slow second stage"
                lines.append(f"  {name}, {ranks}, {what} handed on: expected {expected()}, {told}")
    return lines


def worker(rank, world, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    lines = run(rank, world)
    if world > 1:
        dist.barrier()
    Path(folder, f"{rank}.txt").write_text("".join(f"{line}\n" for line in lines))
    os._exit(0)


def main():
    print(f"outputs of {M} microbatches: how many the first stage has seen")
    for world in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            make = mp.get_context("spawn").Process
            processes = [make(target=worker, args=(rank, world, folder)) for rank in range(world)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=60)
                process.kill()
            for rank in range(world):
                path = Path(folder, f"{rank}.txt")
                if not path.exists():
                    sys.exit(f"inconclusive: a rank gave no result ({path.name})")
                print(path.read_text(), end="")


if __name__ == "__main__":
    main()
