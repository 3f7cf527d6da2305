"""With activation checkpointing, a stage that hands on two tensors ends its first step in a bare TypeError.

What: stage 0 hands on a tuple of two tensors, and PipelineModule has activation_checkpoint_interval=1. The backward of
  stage 0 raises "'NoneType' object is not iterable", and stage 1 is left alone. With the interval 0, or one tensor, it
  ends.
Where: DeepSpeed 0.19.8, runtime/pipe/engine.py, _exec_backward_pass, lines 848 to 853: `out.backward(gradient=grad,
  retain_graph=...)` for one output after the other; runtime/activation_checkpointing/checkpointing.py,
  CheckpointFunction.backward, line 700, which forgets what it saved when it has run once.
Why: the outputs come from one graph, so the checkpoint's backward runs once per output; retain_graph keeps autograd's
  tensors, and not those of the checkpoint. (Without checkpoints the whole backward of the stage runs once per output,
  too.)
Requirement: TRN-30.
Schedules: TrainSchedule and DualPipeV, two stages or more.
Known: -
Possible fix: one torch.autograd.backward(out_tensors, grad_tensors).
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
        return super().forward(inputs[0] + inputs[1])


def worker(rank, interval, folder):
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
        activation_checkpoint_interval=interval,
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        config={"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1},
    )
    try:
        engine.train_batch(iter([(torch.ones(1, 2), torch.zeros(1, 2))]))
        text = "returned"
    except TypeError as error:
        line = error.__traceback__
        while line.tb_next is not None:
            line = line.tb_next
        text = f"TypeError {str(error)!r} in {Path(line.tb_frame.f_code.co_filename).name}"
    except RuntimeError:
        text = "lost the other rank"
    Path(folder, f"{rank}.txt").write_text(text)
    while not Path(folder, "end").exists():  # a closing socket would wake the other rank up
        time.sleep(0.1)
    os._exit(0)


def main():
    for interval in (0, 1):
        with tempfile.TemporaryDirectory() as folder:
            make = mp.get_context("spawn").Process
            processes = [make(target=worker, args=(rank, interval, folder)) for rank in range(WORLD)]
            for process in processes:
                process.start()
            first = Path(folder, "0.txt")
            while processes[0].is_alive() and not first.exists():
                time.sleep(0.1)
            time.sleep(2)
            Path(folder, "end").touch()
            for process in processes:
                process.join(timeout=5)
                process.kill()
            actual = first.read_text() if first.exists() else "no result"
            print(f"activation_checkpoint_interval={interval}, rank 0: expected returned, actual {actual}")


if __name__ == "__main__":
    main()
