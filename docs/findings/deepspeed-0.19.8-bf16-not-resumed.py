"""A pipeline in bfloat16 without ZeRO cannot be resumed: its checkpoint raises KeyError, or loads weights for one step.

What: with `bf16` and no ZeRO, which is how the engine trains a pipeline in bfloat16 by default, load_checkpoint raises
  KeyError: 0 on every rank, on the checkpoint that the same engine has just saved. With load_optimizer_states=False it
  returns, and the weights are those of the checkpoint until the first step, which puts back the ones that the new
  engine was made with: here a step with the learning rate 0 changes 1 into 5. With ZeRO of stage 1 both are right.
Where: DeepSpeed 0.19.8, runtime/engine.py, _load_checkpoint: where ZeRO is off it hands the saved state to
  optimizer.load_state_dict, which for a pipeline is BF16_Optimizer's, and that one takes a list with the states of all
  replicas. The float32 copies are refreshed from loaded weights under load_module_only alone, and where ZeRO is on.
Why it is one: the documentation's page "Model Checkpointing", and load_checkpoint's docstring, leave out no dtype.
  Without a pipeline the engine takes another optimizer for the same configuration, whose state it can load.
Requirement: LIF-10.
Schedules: the one there is (TrainSchedule).
Known: near DeepSpeed#7786, which mends saving and loading of bf16 without ZeRO, and #4141, which refreshes the float32
  copies under load_module_only.
Possible fix: give BF16_Optimizer the state in the list that it takes, and call refresh_fp32_params wherever weights
  were loaded and the optimizer's state was not.
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
SAVED, MADE_WITH = 1.0, 5.0


def loss_function(output, target):
    return nn.functional.mse_loss(output.float(), target.float())


def engine_with(weight, zero):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    stages = [nn.Linear(1, 1, bias=False) for _ in range(WORLD)]
    for stage in stages:
        nn.init.constant_(stage.weight, weight)
    module = PipelineModule(stages, num_stages=WORLD, loss_fn=loss_function, partition_method="uniform")
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": zero},
            "zero_allow_untested_optimizer": True,
        },
    )
    return engine


def step(engine):
    one = torch.ones(1, 1, dtype=torch.bfloat16)
    engine.train_batch(iter([(one, one)]))


def weight_of(engine):
    return next(engine.module.parameters()).item()


def resumed(folder, zero, **options):
    first = engine_with(SAVED, zero)
    step(first)
    first.save_checkpoint(folder)
    dist.barrier()
    second = engine_with(MADE_WITH, zero)
    try:
        second.load_checkpoint(folder, **options)
    except KeyError as error:
        return f"raised KeyError: {error}"
    loaded = weight_of(second)
    step(second)
    return (
        f"weight saved {weight_of(first)}, loaded {loaded}, after a step with the rate 0 {weight_of(second)}"
    )


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
    deepspeed.utils.logger.setLevel("CRITICAL")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    lines = [
        f"ZeRO stage {zero}, {options or 'everything'}: "
        + resumed(f"{folder}/{zero}-{len(options)}", zero, **options)
        for zero in (1, 0)
        for options in ({}, {"load_optimizer_states": False})
    ]
    Path(folder, f"{rank}.txt").write_text("".join(f"rank {rank}, {line}\n" for line in lines))
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
