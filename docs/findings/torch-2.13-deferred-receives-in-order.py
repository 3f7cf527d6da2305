"""With defer_pp_recv=True torch's own runtime never ends where two ranks serve their messages in order.

What: a training step of torch's runtime, not of its table. Its sends and receives are carried out by gloo, but as
  a communicator of two ranks does it: one after the other, in the order in which the rank issued them, the next
  one begun when the last one is over. (Torch gives every pair of ranks such a communicator for its single sends
  and receives on NCCL; they are operations on one stream. Batches of several operations are begun together.) The
  defaults end. With defer_pp_recv=True, documented as "deadlock avoidance via rank-parity ordering", rank 0 has a
  receive in front of the send that rank 1 wants, and rank 1 one in front of what rank 0 wants. Not run on NCCL.
Where: torch 2.13.0, distributed/pipelining/schedules.py, _defer_recv_ops, lines 1525 to 1615; the operations
  are issued by _batch_p2p, lines 623 to 648.
Why: see torch-2.13-deferred-receives-deadlock.py, which is about the table; this is what becomes of it.
Requirement: COM-3.
Schedules: with defer_pp_recv=True (not the default); shown for Interleaved1F1B with two microbatches.
Possible fix: as there.
"""

import os
import queue
import sys
import tempfile
import threading
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

WORLD = 2
M = 2
PATIENCE = 10  # seconds


class Work:
    """What a send or receive returns at once."""

    def __init__(self):
        self.done = threading.Event()

    def wait(self, timeout=None):
        if not self.done.wait(PATIENCE):
            raise TimeoutError
        return True


class InOrder:
    """One communicator: operations are begun and ended one after the other."""

    def __init__(self):
        self.todo = queue.SimpleQueue()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            begins, works = self.todo.get()
            try:
                for real in [begin() for begin in begins]:
                    real.wait()
            except RuntimeError:  # the other rank is gone
                return
            for work in works:
                work.done.set()

    def issue(self, begins):
        works = [Work() for _ in begins]
        self.todo.put((begins, works))
        return list(works)  # callers take theirs out of it


def serve_in_order():
    """Let every isend and irecv go through one communicator, and every batch of them through another."""
    pair, group, isend, irecv = InOrder(), InOrder(), dist.isend, dist.irecv

    def single(real):
        def issue(*args, **kwargs):
            return pair.issue([lambda: real(*args, **kwargs)])[0]

        return issue

    ours = {"isend": single(isend), "irecv": single(irecv)}
    reals = {ours["isend"]: isend, ours["irecv"]: irecv}

    def batch(ops):
        begins = [lambda op=op: reals[op.op](op.tensor, op.peer, group=op.group, tag=op.tag) for op in ops]
        return group.issue(begins)

    ours["batch_isend_irecv"] = batch
    for name, function in ours.items():
        setattr(dist, name, function)
        setattr(distributed_c10d, name, function)


def run(rank, deferred):
    stage = PipelineStage(nn.Linear(1, 1), rank, WORLD, torch.device("cpu"))
    schedule = ScheduleInterleaved1F1B([stage], M, loss_fn=nn.functional.mse_loss, defer_pp_recv=deferred)
    try:
        if rank == 0:
            schedule.step(torch.ones(M, 1))
        else:
            schedule.step(target=torch.zeros(M, 1))
    except TimeoutError:
        return f"still waits after {PATIENCE} s"
    return "ends"


def worker(rank, folder, deferred):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    serve_in_order()
    Path(folder, f"{rank}.txt").write_text(run(rank, deferred))
    threading.Event().wait(PATIENCE)  # a rank that is gone would be an error of the other one
    os._exit(0)


def main():
    for deferred in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                mp.get_context("spawn").Process(target=worker, args=(rank, folder, deferred))
                for rank in range(WORLD)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=120)
                process.kill()
            for rank in range(WORLD):
                path = Path(folder, f"{rank}.txt")
                if not path.exists():
                    sys.exit(f"inconclusive: defer_pp_recv={deferred}: rank {rank} gave no result")
                found = path.read_text()
                print(f"defer_pp_recv={deferred}, rank {rank}: expected: ends  actual: {found}")


if __name__ == "__main__":
    main()
