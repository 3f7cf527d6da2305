"""Every stage keeps a receive buffer for every microbatch, whatever the schedule's bound.

What: 1F1B is chosen because a rank holds at most p microbatches, however many there are. Each stage but the first
  allocates m receive buffers for activations before the first step and keeps them (each stage but the last: m for
  gradients, too), so the memory of the boundaries grows with m all the same.
Where: torch 2.13.0, distributed/pipelining/stage.py, _setup_forward_recv_info (line 2244) and
  _setup_backward_recv_info (line 322): one _RecvInfo with a buffer of its own per chunk.
Why: a buffer's index is the microbatch's; buffers are never taken over by a later microbatch.
Requirement: LIF-7.
Known: https://github.com/pytorch/pytorch/issues/136380 and https://github.com/pytorch/pytorch/pull/193872.
Schedules: all; it exceeds the bound under those that have one below m (1F1B, the interleaved and zero-bubble ones).
Possible fix: as many buffers as the schedule keeps in flight, or allocate when the receive is posted and let
  autograd free what it no longer needs.
"""

import gc
import os
import sys
import tempfile
import warnings
import weakref
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

WORLD = 2


def run(rank):
    lines = []
    for m in (2, 8, 32):
        torch.manual_seed(0)
        stage = PipelineStage(nn.Linear(4, 4), rank, WORLD, torch.device("cpu"))
        schedule = get_schedule_class("1F1B")(stage, m, loss_fn=nn.functional.mse_loss)
        x = torch.randn(2 * m, 4)
        seen = []
        stage.submod.register_forward_pre_hook(lambda m, args, seen=seen: seen.append(weakref.ref(args[0])))
        for _ in range(2):
            seen.clear()
            schedule.step(*(() if rank else (x,)), **({"target": x} if rank else {}))
        gc.collect()
        alive = {one().data_ptr() for one in seen if one() is not None}
        if rank:
            lines.append(
                f"1F1B, p = {WORLD}, m = {m}: stage 1's inputs alive after the step, in memory of their own: "
                f"expected at most {WORLD - rank}, actual {len(alive)}"
            )
    return lines


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
