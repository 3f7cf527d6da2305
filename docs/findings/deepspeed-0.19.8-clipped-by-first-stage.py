"""gradient_clipping scales all gradients by the norm of the first stage's alone.

What: in float32 the norm that gradients are clipped by has the gradients of pipeline stage 0 only; those of all other
  stages are left out. Where stage 0's are small, nothing is clipped, however large the others are.
Where: DeepSpeed 0.19.8, runtime/utils.py: clip_grad_norm_ counts a parameter if mpu.get_model_parallel_rank() is 0 or
  it is marked as model-parallel. For a pipeline mpu is its grid, whose model-parallel ranks are those of all its
  stages, and no parameter is marked: whole parameters of later stages are taken for copies of the first one's.
Why it is one: training.md, "Gradient Clipping": DeepSpeed clips by the max gradient norm that the user gives.
  In bfloat16 the engine's other optimizer counts all stages.
Requirement: TRN-21.
Schedules: the one there is (TrainSchedule), two stages or more.
Known: near https://github.com/deepspeedai/DeepSpeed/issues/8475 (open: the same function averages norms of ranks with
  different experts).
Possible fix: only the ranks of a stage's own tensor parallelism (get_slice_parallel_rank) hold copies.
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

WORLD = 2
LIMIT = 1.0


def data():
    return torch.full((1, 1), 4.0), torch.zeros(1, 1)


def layers():
    made = [nn.Linear(1, 1, bias=False) for _ in range(WORLD)]
    for layer, value in zip(made, (2.0, 0.5), strict=True):
        nn.init.constant_(layer.weight, value)
    return made


def plain():
    stages, (x, y) = layers(), data()
    nn.functional.mse_loss(nn.Sequential(*stages)(x), y).backward()
    sizes = [stage.weight.grad.item() for stage in stages]
    norm = nn.utils.clip_grad_norm_([stage.weight for stage in stages], LIMIT).item()
    return sizes, norm, [stage.weight.grad.item() for stage in stages]


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
    stages = layers()
    module = PipelineModule(
        stages, num_stages=WORLD, loss_fn=nn.functional.mse_loss, partition_method="uniform"
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    before = stages[rank].weight.item()
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": LIMIT,
        },
    )
    engine.train_batch(iter([data()]))
    sizes, norm, clipped = plain()
    Path(folder, f"{rank}.txt").write_text(
        f"stage {rank}: gradient {sizes[rank]}, norm of both stages {norm:.6f}, limit {LIMIT}\n"
        f"stage {rank}: expected update {clipped[rank]:.6f}\n"
        f"stage {rank}: actual   update {before - stages[rank].weight.item():.6f}, "
        f"as if the norm were {LIMIT * sizes[rank] / (before - stages[rank].weight.item()):.6f}\n"
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
