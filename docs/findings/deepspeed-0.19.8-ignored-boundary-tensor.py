"""A boundary tensor that the next stage does not use ends the step in an assertion on one rank, and a hang.

What: stage 0 hands on a tuple of two tensors, stage 1 uses the first only. Its backward leaves no gradient
  for the second; the engine asserts that there is one, without a message, and stage 0 waits for it.
Where: DeepSpeed 0.19.8, runtime/pipe/engine.py, _exec_send_grads: `assert buffer.grad is not None` for every
  floating tensor that was received.
Why: every received floating tensor is made to require a gradient, whether or not anything depends on it.
  The same holds for a floating tensor that needs none (a mask of 0.0 and -inf, say) and is used as such.
Requirement: FWD-12, TRN-15.
Schedules: the one there is (TrainSchedule), two stages or more, also in a later stage.
Known: https://github.com/deepspeedai/DeepSpeed/issues/7270 (open), issues/3302 (closed).
Possible fix: send zeros where there is no gradient, as the receiver expects a message.
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

WORLD = 2


class First(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y, y * 2


class Last(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs[0])


def worker(rank, folder):
    warnings.simplefilter("ignore")
    sys.stdout = io.StringIO()  # the engine prints
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    import deepspeed
    from deepspeed.pipe import PipelineModule

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    torch.manual_seed(0)
    module = PipelineModule(
        [First(2, 2), Last(2, 2)],
        num_stages=WORLD,
        loss_fn=nn.functional.mse_loss,
        partition_method="uniform",
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        config={"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1},
    )
    try:
        engine.train_batch(iter([(torch.ones(1, 2), torch.zeros(1, 2))]))
        text = "returned"
    except AssertionError as error:
        line = error.__traceback__
        while line.tb_next is not None:
            line = line.tb_next
        text = f"AssertionError {str(error)!r} in {line.tb_frame.f_code.co_name}"
    Path(folder, f"{rank}.txt").write_text(f"rank {rank}: expected returned\nrank {rank}: actual   {text}\n")
    while rank and not Path(folder, "end").exists():  # a closing socket would wake rank 0 up
        time.sleep(0.1)
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        while processes[1].is_alive() and not Path(folder, "1.txt").exists():
            time.sleep(0.1)
        processes[0].join(timeout=5)
        Path(folder, "end").touch()
        for process in processes:
            process.kill()
        for rank in range(WORLD):
            path = Path(folder, f"{rank}.txt")
            print(path.read_text() if path.exists() else f"rank {rank}: still waiting\n", end="")


if __name__ == "__main__":
    main()
