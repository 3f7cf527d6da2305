"""With tensor parallelism dynamic_shape keeps the first shape: an error, or wrong losses of as many elements.

What: PipelineModule(dynamic_shape=True) is for inputs whose shapes vary. On a grid with tensor parallelism the next
  stage takes every microbatch for one of the first one's shape. One of another size is an error about an all-gather
  there, and the stages before wait. One with as many elements, such as three rows of two tokens after two of three, is
  computed in the first shape, and the loss is wrong without an error. Without tensor parallelism, and if
  pipe_partitioned and grad_partitioned are switched off, losses are right.
Where: DeepSpeed 0.19.8, runtime/pipe/engine.py: with tensor parallelism each rank sends its part of an activation, and
  before it a tensor that says the shape. _exec_forward_pass keeps the first one that it was sent in
  pipe_partition_input_meta_cache, and so do the backward and the gradients; only reset_activation_shape forgets them.
Why it is one: PipelineModule's docstring: dynamic_shape "allows dynamic shapes of inputs". That the shapes are kept is
  older than the option.
Requirement: none (tensor parallelism is not claimed).
Schedules: the one there is (TrainSchedule, InferenceSchedule).
Known: near DeepSpeed#4360, which began to keep the shapes and says that they must not change, and #5481, which brought
  dynamic_shape later.
Possible fix: keep them only where dynamic_shape is off.
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

STAGES, TENSOR_RANKS = (
    2,
    2,
)  # the ranks of a stage compute the same here, which tensor parallelism would split
WORLD = STAGES * TENSOR_RANKS
SHAPES = {"one shape": (2, 3), "another size": (3, 3), "as many elements": (3, 2)}


def batch(*shape):
    return torch.arange(1.0, 1.0 + shape[0] * shape[1]).view(*shape, 1), torch.zeros(1)


def loss_function(output, target):
    """Of the sums over tokens."""
    return (output.sum(1) - target).square().mean()


def layers():
    made = [nn.Linear(1, 1, bias=False) for _ in range(STAGES)]
    for layer in made:
        nn.init.constant_(layer.weight, 1.0)
    return made


def expected(batches):
    with torch.no_grad():
        model = nn.Sequential(*layers())
        return torch.stack([loss_function(model(x), y) for x, y in batches]).mean().item()


def worker(rank, partitioned, shape, folder):
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
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.utils.logger.setLevel("CRITICAL")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    module = PipelineModule(
        layers(),
        topology=PipeModelDataParallelTopology(num_pp=STAGES, num_mp=TENSOR_RANKS, num_dp=1),
        loss_fn=loss_function,
        partition_method="uniform",
        dynamic_shape=True,
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 2,
            "pipeline": {"pipe_partitioned": partitioned, "grad_partitioned": partitioned},
        },
    )
    batches = [batch(2, 3), batch(*SHAPES[shape])]
    try:
        said = f"loss {engine.eval_batch(iter(batches)).item():.4f}, expected {expected(batches):.4f}"
    except Exception as error:
        said = f"raised {type(error).__name__}: {error}"
    Path(folder, f"{rank}.txt").write_text(said)
    while not Path(folder, "end").exists():  # a closing socket would wake the other ranks up
        time.sleep(0.1)
    os._exit(0)


def main():
    for partitioned, shape in ((False, "another size"), *((True, shape) for shape in SHAPES)):
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                mp.get_context("spawn").Process(target=worker, args=(r, partitioned, shape, folder))
                for r in range(WORLD)
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
            first, last = (paths[0], paths[-1])
            print(f"{'in parts (the default)' if partitioned else 'not in parts'}, {shape}:")
            for words, path in (("first stage", first), ("last stage", last)):
                print(f"  {words}: {path.read_text() if path.exists() else 'still waiting'}", flush=True)
            Path(folder, "end").touch()
            for process in processes:
                process.kill()


if __name__ == "__main__":
    main()
