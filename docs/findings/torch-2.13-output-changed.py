"""A stage whose output changes after the first step: the receiver aborts, reads other bytes, or waits for ever.

What: in the second step stage 0 hands on (a) a tensor whose last dimension is longer by one: the process of stage 1
  ends by SIGABRT; (b) a float32 tensor instead of float64: stage 1 computes on its bytes read as float64, and step()
  returns on both ranks without an error; (c) for one microbatch of two nothing, as an empty tuple: both ranks wait
  until the group's time-out.
Where: torch 2.13.0, distributed/pipelining/stage.py, _setup_forward_recv_info: receive buffers are made from what the
  first step had; forward_one_chunk and get_fwd_send_ops send whatever the stage returns.
Why: shapes and dtypes are compared only with TORCH_DISTRIBUTED_DEBUG=DETAIL (_runtime_validate, line 219); with it all
  three are a PipeliningMetadataError that names the stage, on the rank of stage 0. gloo ends the process when a message
  is longer than the buffer, and receives a shorter one without a word.
Requirement: ERR-3, ERR-4, ERR-5, ERR-13; ERR-1 and ERR-11 where another input changes the output.
Schedules: all; two ranks or more.
Known: the comment at line 217 says that the check is expensive.
Possible fix: compare shape and dtype before each send, which needs no communication.
"""

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
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

WORLD = 2
M = 2


class Changing(nn.Module):
    """The identity, until `change` says what to return instead."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.change = None
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = x * self.weight
        return x if self.change is None else self.change(x, self.calls)


class Seen(nn.Module):
    """The identity, which remembers what it was given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.seen = []

    def forward(self, x):
        self.seen.append(x.detach().clone())
        return x * self.weight


CHANGES = {
    "longer": lambda x, call: torch.cat([x, x[:, :1]], dim=1),
    "float32": lambda x, call: x.to(torch.float32),
    "empty": lambda x, call: () if call == 1 else x,
}


def run(rank, change):
    module = Seen() if rank else Changing()
    stage = PipelineStage(module, rank, WORLD, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, M, loss_fn=lambda output, target: output.sum())
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)

    def once():
        schedule.step(target=x) if rank else schedule.step(x)

    once()
    if rank == 0:
        module.change, module.calls = CHANGES[change], 0
    else:
        module.seen.clear()
    try:
        once()
    except Exception as error:
        words = str(error).strip().splitlines()[-1]
        lost = "gloo" in words or "imed out" in words  # whoever times out first closes the other's connection
        told = "connection lost, or timed out" if lost else words
        return f"{type(error).__name__}: {told[:100]}"
    if rank:
        given = [value.tolist()[0] for value in module.seen]
        return f"no error; stage 1 was given {given}; expected [[1.0], [2.0]] or an error"
    return "no error"


def worker(rank, change, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=5),
    )
    said = run(rank, change)
    Path(folder, f"{rank}.txt").write_text(said)
    os._exit(0)


def main():
    for change in CHANGES:
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                mp.get_context("spawn").Process(target=worker, args=(r, change, folder)) for r in range(WORLD)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=60)
                process.kill()
            for rank, process in enumerate(processes):
                path = Path(folder, f"{rank}.txt")
                if not path.exists() and process.exitcode in (None, 0, -9):  # it was killed above
                    sys.exit(f"inconclusive: {change}: rank {rank} gave no result")
                died = f"no result; exit code {process.exitcode} (-6 is SIGABRT)"
                print(f"{change}, rank {rank}: {path.read_text() if path.exists() else died}")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
