"""Under torch_autocast a gradient in bfloat16 is received into the float32 buffer of an activation.

What: of three stages the middle one takes float32 and returns bfloat16. With "torch_autocast" its output's gradient is
  two numbers of bfloat16 read as one of float32, and the first two stages get wrong gradients; the loss is exact.
  With linear maps only, which all return bfloat16, the gradients are right.
Where: DeepSpeed 0.19.8, runtime/pipe/engine.py, _allocate_or_extend_buffers: a buffer is reused when it is
  large enough, whatever its dtype is (as in E1). _recv_tensor_meta makes it for the activation, _exec_recv_grads takes
  it for the gradient, which has the same number of elements.
Why: training.rst, "Mixed Precision Training": torch_autocast can be used with and without ZeRO, and operators follow
  torch.autocast's policy, under which sums and linear maps have different dtypes.
Requirement: FWD-18.
Schedules: TrainSchedule with three stages or more. A float32 gradient that meets a 16-bit buffer ends the process (gloo
  refuses the longer message); under DualPipeV activations of both kinds share buffers, with the same end.
Known: no issue found about pipelines; https://github.com/deepspeedai/DeepSpeed/pull/6993 added torch_autocast.
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
INPUT, TARGET = torch.ones(1, 2), torch.zeros(1, 2)
AUTOCAST = {"enabled": True, "dtype": "bfloat16"}


class Sum(nn.Module):
    """Returns float32, as what it is given and its weight are."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), 0.5))

    def forward(self, x):
        return x + self.weight


def layers(*kinds):
    torch.manual_seed(0)
    return [nn.Linear(2, 2, bias=False) if kind == "linear" else Sum() for kind in kinds]


MODELS = {"sum, linear, linear": ("sum", "linear", "linear"), "linear only": ("linear", "linear", "linear")}


def plain(kinds):
    stages = layers(*kinds)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(nn.Sequential(*stages)(INPUT), TARGET)
    loss.backward()
    return loss.item(), [stage.weight.grad.flatten().tolist() for stage in stages]


def trained(rank, kinds):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    stages, gradients = layers(*kinds), []
    module = PipelineModule(
        stages, num_stages=WORLD, loss_fn=nn.functional.mse_loss, partition_method="uniform"
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(lambda *_: gradients.append(stages[rank].weight.grad.flatten().tolist()))
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,
            "torch_autocast": AUTOCAST,
        },
    )
    return engine.train_batch(iter([(INPUT, TARGET)])).item(), gradients[0]


def shown(loss, gradient):
    return f"loss {loss:.6f}, gradient {[float(f'{one:.4g}') for one in gradient]}"


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

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("ERROR")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    lines = []
    for name, kinds in MODELS.items():
        right, rights = plain(kinds)
        lines.append(f"{name}, stage {rank}: expected {shown(right, rights[rank])}\n")
        lines.append(f"{name}, stage {rank}: actual   {shown(*trained(rank, kinds))}\n")
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
