"""Under torch_autocast in float16 every stage but the last ends its first step in an AssertionError.

What: without ZeRO, "torch_autocast" with "float16" scales the loss by a torch.amp.GradScaler. Every stage has one, and
  asks it to step; only the last stage's has ever scaled a loss, so all others raise, and the last one is left waiting.
Where: DeepSpeed 0.19.8, runtime/engine.py: backward() calls scaler.scale(loss), _take_model_step() scaler.step();
  of a pipeline only the last stage calls backward(). Scalers would not agree either: none asks the other stages
  whether their gradients overflowed.
Why: training.rst, "Mixed Precision Training": torch_autocast can be used with and without ZeRO, and "the grad scaler is
  also applied".
Requirement: TRN-24.
Schedules: TrainSchedule and DualPipeV, two stages or more.
Known: https://github.com/deepspeedai/DeepSpeed/pull/7619 added the scaler, with no word of pipelines. How to scale
  losses in a pipeline was asked of another engine in https://github.com/pytorch/torchtitan/issues/803.
Possible fix: give the last stage's scale to all stages before they step, and skip the step in all if one overflowed.
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
INPUT, TARGET = torch.ones(1, 2), torch.zeros(1, 2)


def layers():
    torch.manual_seed(0)
    return [nn.Linear(2, 2, bias=False) for _ in range(WORLD)]


def plain():
    model, scaler = nn.Sequential(*layers()), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(INPUT), TARGET)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    return loss.item()


def trained(dtype):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    module = PipelineModule(
        layers(), num_stages=WORLD, loss_fn=nn.functional.mse_loss, partition_method="uniform"
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.5),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,
            "torch_autocast": {"enabled": True, "dtype": dtype},
        },
    )
    try:
        return f"a step, loss {engine.train_batch(iter([(INPUT, TARGET)])).item():.4f}"
    except AssertionError as error:
        return f"AssertionError: {str(error).partition('.')[0]}"
    except RuntimeError:
        return "RuntimeError, as the other stage has ended"


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
    lines = [f"stage {rank}: expected, float16: a step, loss {plain():.4f}\n"]
    lines += [f"stage {rank}: actual, {dtype}: {trained(dtype)}\n" for dtype in ("bfloat16", "float16")]
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
