"""A gradient is received into an integer buffer when integers stand between floats in a boundary's tuple.

What: every stage hands on (x, numbers, y) with floating x and y and integer numbers. The stage in the middle
  of three computes with a gradient of y that is the bits of a float read as an integer; the loss is exact.
Where: DeepSpeed 0.19.8, runtime/pipe/engine.py, _allocate_or_extend_buffers: a buffer is reused when it is
  large enough, whatever its dtype is. _recv_tensor_meta makes buffer i for the i-th tensor of an activation,
  _exec_recv_grads takes buffer i for the i-th *floating* one: the second gradient gets the integers' buffer.
Why: gloo receives bytes, and autograd converts an integer gradient; with NCCL the sizes differ and ranks hang.
Requirement: FWD-5.
Schedules: the one there is (TrainSchedule), three stages or more. Integers behind all floats do no harm.
Known: https://github.com/tdrussell/diffusion-pipe/pull/544 (a user's workaround for the hang); no issue found.
Possible fix: compare the dtype as well as the size before a buffer is reused.
"""

import io
import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0", GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD = 3
INPUTS = (torch.ones(1, 1), torch.ones(1, 1, dtype=torch.int64), torch.ones(1, 1))
TARGET = torch.zeros(1, 1)


class Layer(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.tensor([[0.5]])), last

    def forward(self, inputs):
        x, numbers, y = inputs
        x = x * self.weight + numbers + y
        return x if self.last else (x, numbers, y * self.weight)


def plain():
    layers = [Layer(last=s == WORLD - 1) for s in range(WORLD)]
    loss = nn.functional.mse_loss(nn.Sequential(*layers)(INPUTS), TARGET)
    loss.backward()
    return loss.item(), [layer.weight.grad.item() for layer in layers]


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
    from deepspeed.pipe import PipelineModule

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    layers = [Layer(last=s == WORLD - 1) for s in range(WORLD)]
    module = PipelineModule(
        layers, num_stages=WORLD, loss_fn=nn.functional.mse_loss, partition_method="uniform"
    )
    optimizer, gradients = torch.optim.SGD(module.parameters(), lr=0.0), []
    optimizer.register_step_pre_hook(lambda *_: gradients.append(layers[rank].weight.grad.item()))
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,
        },
    )
    loss = engine.train_batch(iter([(INPUTS, TARGET)])).item()
    right, rights = plain()
    Path(folder, f"{rank}.txt").write_text(
        f"rank {rank}: expected loss {right}, gradient {rights[rank]}\n"
        f"rank {rank}: actual   loss {loss}, gradient {gradients[0]}\n"
    )
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=200)
            process.kill()
        for rank in range(WORLD):
            path = Path(folder, f"{rank}.txt")
            if not path.exists():
                sys.exit(f"inconclusive: a rank gave no result ({path.name})")
            print(path.read_text(), end="")


if __name__ == "__main__":
    main()
