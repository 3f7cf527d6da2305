"""Every stage before the last divides its gradients by m once more; the loss is exact.

What: with m microbatches the gradients of stage s of p are the right ones divided by m to the power p - 1 - s.
Where: DeepSpeed 0.18.6 to 0.19.2, runtime/pipe/engine.py: _exec_backward_pass calls backward on a stage's
  output, whose hook (_backward_prologue_per_tensor of the plain engine) scales by the accumulation steps.
  In 0.17.6 nothing scales at all: every gradient is m times too large.
Why: the last stage's loss is scaled, and what it sends back is scaled again by everyone who receives it.
Requirement: TRN-1, TRN-3 and all others about gradients.
Schedules: the one there is (TrainSchedule), m >= 2; the factor grows with the number of stages.
Known: https://github.com/deepspeedai/DeepSpeed/issues/8152 (fixed by pull/8154, in 0.19.4), and issues/7773 for
  the missing division.
Possible fix: the one there is: only the last stage scales.
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
M = 4


def batches():
    return [(torch.full((1, 1), 1.0 + k), torch.zeros(1, 1)) for k in range(M)]


def layer():
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 0.5)
    return module


def plain():
    layers = [layer() for _ in range(WORLD)]
    losses = [nn.functional.mse_loss(nn.Sequential(*layers)(x), y) for x, y in batches()]
    loss = sum(losses) / M
    loss.backward()
    return loss.item(), [one.weight.grad.item() for one in layers]


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
    layers = [layer() for _ in range(WORLD)]
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
            "gradient_accumulation_steps": M,
            "gradient_clipping": 0.0,
        },
    )
    loss = engine.train_batch(iter(batches())).item()
    right, rights = plain()
    Path(folder, f"{rank}.txt").write_text(
        f"stage {rank}: expected loss {right}, gradient {rights[rank]}\n"
        f"stage {rank}: actual   loss {loss}, gradient {gradients[0]}, ratio {gradients[0] / rights[rank]}\n"
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
