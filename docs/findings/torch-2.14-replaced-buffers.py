"""The dry run puts buffers back, but not those that a forward replaces by another tensor.

What: a stage that counts its microbatches, or keeps a running mean, by `self.count = self.count + 1` counts one more in
  the first step than it has microbatches. A stage that writes `self.count += 1`, which changes the same tensor, is
  right since 2.14.
Where: torch 2.14.1, distributed/pipelining/stage.py, PipelineStage._pre_metadata_inference_backup, line 1986, and
  _post_metadata_inference_cleanup, line 2235.
Why: shape inference calls every stage once more. Since 2.14 the values of the tensors that were buffers before are
  copied back into these tensors; the module has another one by then. Until 2.13 no buffer was put back (finding 2).
Requirement: TRN-9.
Schedules: all.
Known: no thread about this is known; the copies are of https://github.com/pytorch/pytorch/pull/188558.
Possible fix: keep the tensors by module and name, and register them again; or run the dry run on a copy.
"""

import logging
import os
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
HOWS = ("added in place", "replaced")


class Stage(nn.Module):
    """Counts its forwards in a buffer."""

    def __init__(self, how):
        super().__init__()
        self.inner, self.how = nn.Linear(WIDTH, WIDTH), how
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        if self.how == "replaced":
            self.count = self.count + 1
        else:
            self.count += 1
        return torch.tanh(self.inner(x))


def run(rank, name, how):
    """What the stages of this rank have counted after the first step."""
    cls = get_schedule_class(name)
    several = issubclass(cls, PipelineScheduleMulti)
    n = 2 * WORLD if several else WORLD
    owned = list(range(rank, n, WORLD))
    torch.manual_seed(0)
    modules = [Stage(how) for _ in range(n)]
    stages = [PipelineStage(modules[s], s, n, torch.device("cpu")) for s in owned]
    schedule = cls(stages if several else stages[0], M, loss_fn=nn.functional.mse_loss)
    x, y = torch.randn(2 * M, WIDTH), torch.randn(2 * M, WIDTH)
    args, target = (x,) if 0 in owned else (), {"target": y} if n - 1 in owned else {}
    schedule.step(*args, **target)
    return ", ".join(f"stage {s} {int(modules[s].count)}" for s in owned)


def worker(rank, folder, *case):
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
    Path(folder, f"{rank}.part").write_text(run(rank, *case))
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
    print(f"expected: every stage has counted its {M} microbatches")
    for how in HOWS:
        print(f"a count that is {how}")
        for name in ("GPipe", "1F1B", "Interleaved1F1B"):
            for rank, found in enumerate(outcomes(name, how)):
                print(f"  {name}, rank {rank}: {found}")


if __name__ == "__main__":
    main()
