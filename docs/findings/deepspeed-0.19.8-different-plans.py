"""Ranks that were told different plans: one raises alone, or nobody does, and the others wait for ever.

What: of two ranks one is told of another plan. (a) Four stages instead of two: it is refused with a RuntimeError, on
  that rank alone; the other waits in the constructor. (b) One microbatch instead of two: nobody raises, and a rank
  waits.
Where: DeepSpeed 0.19.8, runtime/pipe/module.py, PipelineModule.__init__: `num_stages` is held against the size of the
  world before the groups are made, on each rank by itself; runtime/pipe/engine.py, train_batch: every rank makes its
  schedule from its own `gradient_accumulation_steps`.
Why: nothing compares the numbers of two ranks, and nobody tells the other ranks of an error.
Requirement: ERR-9, ERR-11.
Schedules: the one there is (TrainSchedule), two ranks or more.
Known: -
Possible fix: compare `num_stages` and `gradient_accumulation_steps` over the world group, which the constructor makes
  first.
"""

import importlib
import io
import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0", GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD = 2
# stages, microbatches: of rank 0, of rank 1
PLANS = {
    "rank 1 has four stages": ((2, 2), (4, 2)),
    "rank 1 has a microbatch less": ((2, 2), (2, 1)),
}


def run(rank, plan):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    num_stages, num_microbatches = PLANS[plan][rank]
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    try:
        module = PipelineModule(
            [nn.Linear(2, 2, bias=False) for _ in range(num_stages)],
            num_stages=num_stages,
            loss_fn=nn.functional.mse_loss,
            partition_method="uniform",
        )
        engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
            config={
                "train_micro_batch_size_per_gpu": 1,
                "gradient_accumulation_steps": num_microbatches,
            },
        )
        engine.train_batch(iter([(torch.ones(1, 2), torch.zeros(1, 2))] * num_microbatches))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:60]}"
    return "no error"


def worker(rank, plan, folder):
    warnings.simplefilter("ignore")
    sys.stdout = io.StringIO()  # the engine prints
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=120),
    )
    importlib.import_module("deepspeed")  # takes its time

    Path(folder, f"{rank}.started").touch()
    Path(folder, f"{rank}.txt").write_text(run(rank, plan))
    while not Path(folder, "end").exists():  # a closing socket would wake the other rank up
        time.sleep(0.1)
    os._exit(0)


def told(rank, process, folder):
    path = Path(folder, f"{rank}.txt")
    if path.exists():
        return path.read_text()
    if process.exitcode is None:
        return "still waiting"
    return f"no result; exit code {process.exitcode} (-6 is SIGABRT)"


def wait_for(processes, folder):
    """Until all have ended; 10 s after the first, or 20 s after the start, the others are taken to wait for ever."""

    def ended(rank):
        return Path(folder, f"{rank}.txt").exists() or not processes[rank].is_alive()

    ranks = range(WORLD)
    while not all(Path(folder, f"{rank}.started").exists() for rank in ranks):
        time.sleep(0.1)
    end = time.monotonic() + 20
    while not any(map(ended, ranks)) and time.monotonic() < end:
        time.sleep(0.1)
    end = time.monotonic() + 10
    while not all(map(ended, ranks)) and time.monotonic() < end:
        time.sleep(0.1)


def main():
    for plan in sys.argv[1:] or PLANS:
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                mp.get_context("spawn").Process(target=worker, args=(r, plan, folder)) for r in range(WORLD)
            ]
            for process in processes:
                process.start()

            wait_for(processes, folder)
            for rank, process in enumerate(processes):
                print(f"{plan}; rank {rank}: {told(rank, process, folder)}", flush=True)
            Path(folder, "end").touch()
            for process in processes:
                process.kill()


if __name__ == "__main__":
    main()
