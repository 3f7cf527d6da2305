"""A floating mask of the batch that a stage hands on beside activations ends the first step in an error there.

What: a stage takes (activation, mask) and returns the same, as the tutorial's layers do. If the mask is made of
  integers the step is right. If it is a floating tensor, which needs no gradient, as masks that are added to
  attention's scores are, the first stage raises "element 0 of tensors does not require grad and does not have a
  grad_fn", and the next one waits. An evaluation is right. Where the mask is made by a stage it is the same.
Where: DeepSpeed 0.19.8, runtime/pipe/engine.py: _exec_recv_activations has every floating tensor require a gradient,
  and _exec_backward_pass calls backward on every floating tensor that was sent, whether it has required one or not.
Why it is one: tutorials/pipeline.md, "Inputs and Outputs": inputs and outputs of a layer are a tensor or a tuple of
  tensors, and its example hands a mask through every layer. Which tensors need gradients is not restricted there.
Requirement: FWD-5 (floating tensors that need no gradient are not claimed).
Schedules: the one there is (TrainSchedule), and DualPipeV, where the suite shows it if the adapter claims such tensors.
Known: DeepSpeed#3895 (closed), where a mask had to be made an integer or to require a gradient.
Possible fix: send with each floating tensor whether it requires a gradient, and ask for that instead of the dtype.
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


class Masked(nn.Linear):
    """A linear map of an activation times a mask; hands both on."""

    def forward(self, inputs):
        x, mask = inputs
        return super().forward(x) * mask, mask


def worker(rank, dtype, folder):
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
    from deepspeed.pipe import PipelineModule

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("CRITICAL")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    layers = [Masked(1, 1, bias=False) for _ in range(WORLD)]
    for layer in layers:
        nn.init.constant_(layer.weight, 2.0)
    module = PipelineModule(
        layers,
        num_stages=WORLD,
        loss_fn=lambda outputs, target: nn.functional.mse_loss(outputs[0], target),
        partition_method="uniform",
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        config={"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1},
    )
    batch = (torch.ones(2, 1), torch.tensor([[1], [0]], dtype=dtype)), torch.ones(2, 1)
    said = f"evaluation: loss {engine.eval_batch(iter([batch])).item()}; "
    try:
        said += f"training: loss {engine.train_batch(iter([batch])).item()}"
    except RuntimeError as error:
        said += f"training: raised RuntimeError: {error}"
    Path(folder, f"{rank}.txt").write_text(said)
    while not Path(folder, "end").exists():  # a closing socket would wake the other rank up
        time.sleep(0.1)
    os._exit(0)


def main():
    for dtype in (torch.int64, torch.float32):
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                mp.get_context("spawn").Process(target=worker, args=(r, dtype, folder)) for r in range(WORLD)
            ]
            for process in processes:
                process.start()
            paths = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
            end = time.monotonic() + 200
            while not any(path.exists() for path in paths) and time.monotonic() < end:
                time.sleep(0.1)
            end = time.monotonic() + 10  # a rank that has not ended by then is taken to wait for ever
            while not all(path.exists() for path in paths) and time.monotonic() < end:
                time.sleep(0.1)
            if not any(path.exists() for path in paths):
                sys.exit("inconclusive: no rank gave a result")
            for rank, path in enumerate(paths):
                said = path.read_text() if path.exists() else "still waiting"
                print(f"mask {dtype}, expected loss 5.0, stage {rank}: {said}", flush=True)
            Path(folder, "end").touch()
            for process in processes:
                process.kill()


if __name__ == "__main__":
    main()
