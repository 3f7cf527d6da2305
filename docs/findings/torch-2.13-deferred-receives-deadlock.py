"""The order that defer_pp_recv=True makes deadlocks when sends wait for their receives.

What: the documented guard of defer_pp_recv ("deadlock avoidance via rank-parity ordering", "breaks circular
  waits") does not hold. In the table that it makes, rank 0 comes to a send before it posts the receive that
  rank 1's send waits for, and the other way round. Carried out literally, with every send waited for before
  the rank goes on (gloo finishes a send when the receive is posted), the step never ends; the table without
  the option does. Torch's own runtime waits for sends at the end of the step only, so with gloo it ends with
  either table: the defect is one of the table. It matters where sends and receives between two ranks are
  served in order, as on one NCCL stream; that has not been run here.
Where: torch 2.13.0, distributed/pipelining/schedules.py, _defer_recv_ops, lines 1525 to 1615.
Why: the lower rank puts before its send only receives that stood before that send already. A receive that
  stands behind it stays there, while the higher rank moves its own receive behind its send: rank 0 has
  0SEND_F1 0RECV_B0, rank 1 gets 1SEND_B0 1RECV_F1.
Requirement: SCH-5.
Schedules: with defer_pp_recv=True (not the default), on two ranks or more: Interleaved1F1B, InterleavedZeroBubble,
  ZBVZeroBubble and DualPipeV with two microbatches or more; LoopedBFS with two stages per rank or more, m >= p.
Possible fix: move a receive back only as far as a simulation in which sends wait for their receives still ends
  (_simulate_comms_compute lets sends pass).
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
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

WORLD = 2
M = 2
PATIENCE = timedelta(seconds=10)


def schedule(rank, **options):
    stage = PipelineStage(nn.Linear(1, 1), rank, WORLD, torch.device("cpu"))
    return ScheduleInterleaved1F1B([stage], M, loss_fn=nn.functional.mse_loss, **options)


def step(rank, **options):
    """One training step by torch's own runtime."""
    if rank == 0:
        schedule(rank, **options).step(torch.ones(M, 1))
    else:
        schedule(rank, **options).step(target=torch.zeros(M, 1))
    return "ends"


def replay(rank, table):
    """Carry out this rank's table literally: post receives, wait for every send, compute nothing."""
    peer, received = 1 - rank, {}
    for action in table:
        text = str(action)
        kind, microbatch = action.computation_type.value, action.microbatch_index
        try:
            if kind.startswith("SEND"):
                tag = 2 * microbatch + kind.endswith("B")
                dist.isend(torch.zeros(1), peer, tag=tag).wait(PATIENCE)
            elif kind.startswith("RECV"):
                tag = 2 * microbatch + kind.endswith("B")
                received[kind[-1], microbatch] = dist.irecv(torch.zeros(1), peer, tag=tag)
            elif (kind[-1], microbatch) in received:
                received.pop((kind[-1], microbatch)).wait(PATIENCE)
        except RuntimeError:  # its patience is over, or its peer's was and the connection is gone
            return f"never gets past {text}"
    return "ends"


def run(rank):
    lines = []
    for deferred in (False, True):
        made = schedule(rank, defer_pp_recv=deferred)
        table = [a for a in made.pipeline_order_with_comms[rank] if a.computation_type.value in KINDS]
        lines += [
            f"defer_pp_recv={deferred}, rank {rank}: {' '.join(map(str, table))}",
            f"  torch's runtime:   expected: ends  actual: {step(rank, defer_pp_recv=deferred)}",
            f"  synchronous sends: expected: ends  actual: {replay(rank, table)}",
        ]
    return lines


KINDS = {"F", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B"}


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=20),
    )
    lines = run(rank)
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
