"""With a communicator for each direction, the gradient of a tensor that is not used is sent through neither of them.

What: with torch.distributed.config.pipeline_per_direction_p2p (or TorchComms, which switches it on) a training step
  hangs if a stage does not use one of the tensors that it is given. The gradient of zeros for that tensor is sent
  through the stage's group; the stage before waits for it in the group of its direction. Without the option the same
  step returns, with right gradients; with it, too, if every tensor is used.
Where: torch 2.14.1, distributed/pipelining/stage.py, _PipelineStageBase.get_bwd_send_ops, line 692: self.group;
  get_bwd_recv_ops, line 566: self._upstream_group.
Why: the option (2.14) gave the sends of gradients another group; that of a gradient which is None was left out.
Requirement: none without the option; with it, FWD-12.
Schedules: all that train.
Known: no thread about this is known. The option is of https://github.com/pytorch/pytorch/pull/186173; the open
  https://github.com/pytorch/pytorch/pull/196666 makes these groups in another way.
Possible fix: self._upstream_group in that place.

Groups are split with NCCL; gloo cannot split one. Here dist.split_group is a function that makes the same group anew.
"""

import logging
import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

WORLD, M, WIDTH = 2, 4, 3
WAITS = "waits for the other rank"
CONFIG = getattr(dist, "config", None)  # newer than some releases
OPTION = "pipeline_per_direction_p2p"
SCHEDULES = (
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)


class Stage(nn.Module):
    """Hands on two tensors; the next stage may use the first one only."""

    def __init__(self, uses, last):
        super().__init__()
        self.inner, self.uses, self.last = nn.Linear(WIDTH, WIDTH), uses, last

    def forward(self, x, second=None):
        if second is not None and self.uses:
            x = x + second
        x = torch.tanh(self.inner(x))
        return x if self.last else (x, x * 0.5)


def run(rank, name, uses):
    """What the first step does on this rank."""
    cls = get_schedule_class(name)
    several, v_shaped = issubclass(cls, PipelineScheduleMulti), name in ("ZBVZeroBubble", "DualPipeV")
    n = 2 * WORLD if several else WORLD
    owned = [rank, n - 1 - rank] if v_shaped else list(range(rank, n, WORLD))
    torch.manual_seed(0)
    modules = [Stage(uses, s == n - 1) for s in range(n)]
    x, y = torch.randn(2 * M, WIDTH), torch.randn(2 * M, WIDTH)
    given = (x,)
    for module in modules[:-1]:  # the same modules without a pipeline
        given = module(*given)
    nn.functional.mse_loss(modules[-1](*given), y).backward()
    right = {s: modules[s].inner.weight.grad for s in owned}
    for module in modules:
        module.zero_grad()
    stages = [PipelineStage(modules[s], s, n, torch.device("cpu")) for s in owned]
    schedule = cls(stages if several else stages[0], M, loss_fn=nn.functional.mse_loss)
    args, target = (x,) if 0 in owned else (), {"target": y} if n - 1 in owned else {}
    schedule.step(*args, **target)
    wrong = [s for s in owned if not torch.allclose(modules[s].inner.weight.grad, right[s], atol=1e-5)]
    return f"returns with {f'wrong gradients in stages {wrong}' if wrong else 'right gradients'}"


def split_group(parent_pg=None, split_ranks=None, group_desc=None):
    """The group of the same ranks, made anew."""
    return dist.new_group(split_ranks[0], group_desc=group_desc)


def worker(rank, folder, name, uses, directions):
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    dist.split_group = split_group
    setattr(CONFIG, OPTION, directions)
    Path(folder, f"{rank}.part").write_text(run(rank, name, uses))
    Path(folder, f"{rank}.part").rename(Path(folder, f"{rank}.txt"))
    time.sleep(60)  # a rank that ends would break the connection on which another waits


def outcomes(*case):
    """Per rank; ranks that have shown nothing after 8 s wait."""
    with tempfile.TemporaryDirectory() as folder:
        make = mp.get_context("fork").Process  # torch is imported once
        processes = [make(target=worker, args=(rank, folder, *case)) for rank in range(WORLD)]
        for process in processes:
            process.start()
        files = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
        started = time.monotonic()
        while not all(file.exists() for file in files) and time.monotonic() - started < 8:
            time.sleep(0.1)
        found = [file.read_text() if file.exists() else WAITS for file in files]
        for process in processes:
            process.kill()
            process.join()
    return found


def main():
    if not hasattr(CONFIG, OPTION):
        sys.exit("this release has no communicators for each direction")
    print("expected: right gradients")
    for uses, directions in ((False, False), (True, True), (False, True)):
        used = "used" if uses else "not used"
        print(f"the second tensor is {used}, {'a group for each direction' if directions else 'one group'}")
        for name in SCHEDULES:
            for rank, found in enumerate(outcomes(name, uses, directions)):
                print(f"  {name}, rank {rank}: {found}")


if __name__ == "__main__":
    main()
