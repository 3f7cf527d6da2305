"""Under DualPipeV a batch of another shape is computed in the shape of the first one, if it has as many elements.

What: the shape of what passes between stages is sent once, in the first step. In the second step every microbatch has
  three rows of two tokens instead of two rows of three. The next stage gets their numbers as two rows of three: what it
  computes along a row is wrong, and so is the loss, here that of the first shape. Nothing is raised. PipelineModule,
  without dynamic_shape, raises in the backward on the first rank, and leaves the other one waiting.
Where: DeepSpeed 0.19.8, runtime/pipe/dualpipev.py, _exec_recv_activations (_recv_specs) and _exec_send_activations
  (_first_send).
Why: DualPipeV "exchanges activation shapes once", refuses dynamic_shape, and compares no shape afterwards; messages
  between ranks are numbers only.
Requirement: ERR-1, ERR-4.
Schedules: DualPipeV, two ranks or more.
Known: -
Possible fix: compare the shape with the one that was sent, before sending, and raise.
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

WORLD, M, WIDTH = 2, 4, 2
SHAPES = ((2, 3, WIDTH), (3, 2, WIDTH))


class Along(nn.Linear):
    """A map of the mean of each row."""

    def forward(self, x):
        return super().forward(x.mean(dim=1, keepdim=True).expand_as(x))


def layers():
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), Along(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]


def batches(shape):
    torch.manual_seed(1)
    return [(torch.randn(shape), torch.tensor(1.0)) for _ in range(M)]


def loss_of(output, target):
    return (output.square().mean() - target) ** 2


def expected(shape):
    model = nn.Sequential(*layers())
    return sum(loss_of(model(x), y) / M for x, y in batches(shape)).item()


def worker(rank, name, folder):
    warnings.simplefilter("ignore")
    sys.stdout = io.StringIO()  # the engine prints
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=10),
    )
    import deepspeed
    from deepspeed import pipe

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    module = getattr(pipe, name)(layers(), num_stages=WORLD, loss_fn=loss_of, partition_method="uniform")
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        config={"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": M},
    )
    for step, shape in enumerate(SHAPES):
        try:
            found = f"{engine.train_batch(iter(batches(shape))).item():.6f}"
        except Exception as error:
            found = f"raises {type(error).__name__}"
        with Path(folder, f"{rank}.txt").open("a") as file:
            what = f"{name}, rank {rank}, step {step}, microbatches of shape {list(shape)}"
            file.write(f"{what}: expected loss {expected(shape):.6f}, actual {found}\n")
    Path(folder, f"{rank}.end").touch()
    while not all(Path(folder, f"{one}.end").exists() for one in range(WORLD)):
        time.sleep(0.1)
    os._exit(0)


def main():
    for name in ("PipelineModule", "DualPipeVModule"):
        with tempfile.TemporaryDirectory() as folder:
            make = mp.get_context("spawn").Process
            processes = [make(target=worker, args=(rank, name, folder)) for rank in range(WORLD)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=100)
                process.kill()
            for rank in range(WORLD):
                path = Path(folder, f"{rank}.txt")
                if not path.exists():
                    sys.exit(f"inconclusive: a rank gave no result ({path.name})")
                print(path.read_text(), end="")


if __name__ == "__main__":
    main()
