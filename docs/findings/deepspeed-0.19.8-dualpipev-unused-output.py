"""Under DualPipeV a single number that no stage uses is differentiated all the same, with the weight 1.

What: the last rank's first stage hands on its activation and one number, such as an auxiliary loss that is only
  watched. Nothing uses the number, and yet its derivative is added to the gradients of every stage up to there. The
  loss is exact. With more than one element the step ends in an error instead.
Where: DeepSpeed 0.19.8, runtime/pipe/dualpipev.py, _exec_backward_pass: on the rank where the pipeline turns around,
  gradients are the `.grad` of what the second stage was given, None where it used nothing. runtime/pipe/engine.py then
  calls `out.backward(gradient=None)`, which autograd takes for 1 if `out` has one element.
Why it is one: the same layers in one process, differentiated once, have no such term; on the other ranks, and without
  DualPipeV, the engine asserts that there is a gradient.
Requirement: FWD-12.
Schedules: DualPipeV (DualPipeVModule), from one rank on.
Known: no public thread found; DualPipeV came with DeepSpeed#8576.
Possible fix: leave out outputs whose gradient is None, or send zeros.
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

WORLD, M = 2, 4


class Watched(nn.Linear):
    """Hands on its activation, and one number beside it."""

    def forward(self, x):
        y = super().forward(x)
        return y, y.square().mean()


class Plain(nn.Linear):
    """Uses the activation alone."""

    def forward(self, given):
        return super().forward(given[0] if isinstance(given, tuple) else given)


def layers():
    torch.manual_seed(0)
    return [Plain(2, 2), Watched(2, 2), Plain(2, 2), Plain(2, 2)]


def batches():
    torch.manual_seed(1)
    return [(torch.randn(1, 2), torch.randn(1, 2)) for _ in range(M)]


def expected(stage):
    stages = layers()
    model = nn.Sequential(*stages)
    sum(nn.functional.mse_loss(model(x), y) / M for x, y in batches()).backward()
    return stages[stage].weight.grad[0, 0].item()


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
    stages = layers()
    module = DualPipeVModule(
        stages, num_stages=WORLD, loss_fn=nn.functional.mse_loss, partition_method="uniform"
    )
    before = [stage.weight[0, 0].item() for stage in stages]
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        config={"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": M},
    )
    engine.train_batch(iter(batches()))
    lines = [
        f"stage {s} on rank {rank}: expected gradient {expected(s):+.6f}\n"
        f"stage {s} on rank {rank}: actual   gradient {before[s] - stages[s].weight[0, 0].item():+.6f}\n"
        for s in (rank, 2 * WORLD - 1 - rank)
    ]
    Path(folder, f"{rank}.txt").write_text("".join(lines))
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
