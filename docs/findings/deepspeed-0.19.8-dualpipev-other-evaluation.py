"""Under DualPipeV an evaluation with another number of microbatches than training has ends in an error.

What: `eval_batch(..., num_micro_batches=n)` with another n than `gradient_accumulation_steps` looks for labels, and on
  the rank where the pipeline turns around for inputs, in the slots of other microbatches: on some ranks an error about
  None or an index, and the others wait.
Where: DeepSpeed 0.19.8, runtime/pipe/dualpipev.py, _phase1_buffer: the slot of a microbatch in the second phase is
  `buffer_id + self.micro_batches`, the number of training; DualPipeVSchedule numbers the slots of an evaluation with
  the evaluation's.
Why it is one: eval_batch's docstring offers `num_micro_batches`, the override here checks it against the least number,
  and PipelineModule's engine takes it.
Requirement: LIF-1, LIF-2, SCH-9.
Schedules: DualPipeV (DualPipeVModule).
Known: no public thread found; DualPipeV came with DeepSpeed#8576.
Possible fix: number the slots by the schedule that runs.
"""

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

WORLD, M = 2, 4


def batches(number):
    torch.manual_seed(1)
    return [(torch.randn(1, 2), torch.randn(1, 2)) for _ in range(number)]


def layers():
    torch.manual_seed(0)
    return [nn.Linear(2, 2) for _ in range(2 * WORLD)]


def expected(number):
    model = nn.Sequential(*layers())
    return sum(nn.functional.mse_loss(model(x), y) / number for x, y in batches(number)).item()


def outcome(engine, number):
    try:
        return f"{engine.eval_batch(iter(batches(number)), num_micro_batches=number).item():.6f}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def worker(rank, folder):
    warnings.simplefilter("ignore")
    sys.stdout = io.StringIO()  # the engine prints
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=100),
    )
    import deepspeed
    from deepspeed.pipe import DualPipeVModule

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    module = DualPipeVModule(
        layers(), num_stages=WORLD, loss_fn=nn.functional.mse_loss, partition_method="uniform"
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        config={"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": M},
    )
    for number in (M, M + 1):
        found = outcome(engine, number)
        with Path(folder, f"{rank}.txt").open("a") as file:
            file.write(
                f"rank {rank}, {number} microbatches, {M} in training: expected loss {expected(number):.6f}\n"
                f"rank {rank}, {number} microbatches, {M} in training: actual   {found}\n"
            )
    while not Path(folder, "end").exists():  # a closing socket would wake the other rank up
        time.sleep(0.1)
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        files = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
        until = time.monotonic() + 200
        while time.monotonic() < until and not any(
            f.exists() and f.read_text().count("\n") == 4 for f in files
        ):
            time.sleep(0.1)
        time.sleep(5.0)
        texts = [file.read_text() if file.exists() else "" for file in files]
        Path(folder, "end").touch()
        for process in processes:
            process.kill()
        if any(text.count("\n") < 2 for text in texts):
            sys.exit("inconclusive: a rank gave no result")
        for rank, text in enumerate(texts):
            print(text, end="")
            if text.count("\n") == 2:
                print(f"rank {rank}, {M + 1} microbatches, {M} in training: still waiting")


if __name__ == "__main__":
    main()
