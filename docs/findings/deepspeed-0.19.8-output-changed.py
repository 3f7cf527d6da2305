"""A stage whose output, input or gradient changes, or that raises, after the first step: aborts, foreign bytes, waits.

What: in the second step stage 0 (a) hands on a tensor whose last dimension is longer by one: the process of stage 1
  ends by SIGABRT, as it does when stage 0 is given a sample more; (b) hands on bfloat16 instead of float32: stage 1
  computes on the bytes read as float32, half of them those of the step before, and train_batch() returns on both
  ranks without an error; (c) hands on None or raises in its forward, is given integers, or has a hook that makes a
  gradient longer: the error is raised on its own rank, and stage 1 waits until the group's time-out; (d) hands on a
  second tensor: no rank raises, and both ranks wait.
Where: DeepSpeed 0.19.8, runtime/pipe/engine.py, _exec_send_activations and _exec_recv_activations: the shapes and
  dtypes of a boundary travel once, before the first message (`first_output_send`), and are taken for granted later.
Why: nothing compares what is sent with what was announced, and the other ranks do not learn of an error. gloo ends the
  process when a message is longer than the buffer, and receives a shorter one without a word.
Requirement: ERR-3, ERR-4, ERR-10, ERR-11, ERR-13, ERR-14; ERR-1, ERR-2, ERR-5 and ERR-6 where another input, or a
  hook, is the cause.
Schedules: the one there is (TrainSchedule), two stages or more. `dynamic_shape` is off, as it is by default.
Known: https://github.com/deepspeedai/DeepSpeed/issues/3195, issues/4777 and issues/5696 (closed: later sequences
  are taken to be as long as the first). Other shapes are documented to need `dynamic_shape` (PipelineModule); what
  happens without it is not said.
Possible fix: compare shape and dtype with what was announced before each send, which needs no communication.
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


def longer(x):
    return torch.cat([x, x[:, :1]], dim=1)


def broken(x):
    raise RuntimeError("stage 0 is broken")


def hooked(x):
    x.register_hook(longer)
    return x


CHANGES = {  # what stage 0 makes of its output in the second step
    "longer": longer,
    "bfloat16": lambda x: x.to(torch.bfloat16),
    "None": lambda x: None,
    "a second tensor": lambda x: (x, x),
    "raises": broken,
    "a longer gradient": hooked,
}
INPUTS = {  # what it is given in the second step
    "more samples": torch.full((2, 2), 2.0),
    "integers": torch.full((1, 2), 2),
}


class Changing(nn.Linear):
    """A linear map, until `change` says what to make of its output."""

    change = None

    def forward(self, x):
        y = super().forward(x)
        return y if self.change is None else self.change(y)


class Seen(nn.Linear):
    """A linear map that remembers what it was given last."""

    def forward(self, x):
        self.seen = x.detach().clone()
        return super().forward(x)


def run(rank, change):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    module = PipelineModule(
        [Changing(2, 2, bias=False), Seen(2, 2, bias=False)],
        num_stages=WORLD,
        loss_fn=nn.functional.mse_loss,
        partition_method="uniform",
    )
    (mine,) = (part for part in module.modules() if isinstance(part, (Changing, Seen)))
    nn.init.eye_(mine.weight)
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        config={"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1},
    )

    def once(x):
        engine.train_batch(iter([(x, torch.zeros(1, 2))]))

    once(torch.ones(1, 2))
    if rank == 0:
        mine.change = CHANGES.get(change)
    try:
        once(INPUTS.get(change, torch.full((1, 2), 2.0)))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:60]}"
    if rank:
        return f"no error; stage 1 was given {mine.seen.tolist()}; expected [[2.0, 2.0]] or an error"
    return "no error"


def worker(rank, change, folder):
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
    Path(folder, f"{rank}.txt").write_text(run(rank, change))
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
    for change in sys.argv[1:] or (*CHANGES, *INPUTS):
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                mp.get_context("spawn").Process(target=worker, args=(r, change, folder)) for r in range(WORLD)
            ]
            for process in processes:
                process.start()

            wait_for(processes, folder)
            for rank, process in enumerate(processes):
                if change in ("longer", "more samples") and rank == 0:
                    continue  # whose connection broke, or not yet
                print(f"{change}, rank {rank}: {told(rank, process, folder)}", flush=True)
            Path(folder, "end").touch()
            for process in processes:
                process.kill()


if __name__ == "__main__":
    main()
