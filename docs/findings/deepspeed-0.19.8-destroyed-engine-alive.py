"""A destroyed pipeline engine stays alive, and with it the threads of its process groups.

What: engines are built, trained for a step, destroyed and dropped; after garbage collection all of them are
  there, with some 15 gloo threads and 20 descriptors each, although their groups were destroyed too.
Where: DeepSpeed 0.19.8, runtime/pipe/engine.py: the last stage's _exec_backward_pass returns before it frees
  pipe_buffers["outputs"], so the last output and its graph outlive the step; runtime/engine.py hooks that graph
  with methods of the engine (OutputBackwardHookManager), and destroy() frees neither.
Why: the cycle leads through autograd's nodes, where Python's garbage collector does not look.
Requirement: LIF-3 (outputs kept after a step; what every pipeline leaves behind).
Schedules: the one there is (TrainSchedule), on the rank of the last stage.
Known: none found.
Possible fix: free the last stage's outputs after its backward, as on all other stages.
"""

import gc
import io
import os
import sys
import tempfile
import warnings
from pathlib import Path

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0", GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
from torch import nn


def groups():
    return set(dist.distributed_c10d._world.pg_map)


def live(*, free):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    before = groups()
    module = PipelineModule(
        [nn.Linear(1, 1)], num_stages=1, loss_fn=nn.functional.mse_loss, partition_method="uniform"
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        config={"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1},
    )
    engine.train_batch(iter([(torch.ones(1, 1), torch.zeros(1, 1))]))
    if free:
        engine.pipe_buffers.clear()
        engine.loss = None
    engine.destroy()
    for group in groups() - before:
        dist.destroy_process_group(group)


def engines():
    gc.collect()
    return sum(type(thing).__name__ == "PipelineEngine" for thing in gc.get_objects())


def threads():
    return len(os.listdir("/proc/self/task"))


def main():
    out, sys.stdout = sys.stdout, io.StringIO()  # the engine prints
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "gloo", init_method=f"file://{Path(folder, 'rendezvous')}", rank=0, world_size=1
        )
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.utils.logger.setLevel("ERROR")
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
        for free in (True, False):
            live(free=True)
            had = threads()
            for _ in range(3):
                live(free=free)
            what = "with its buffers freed by hand" if free else "as it is"
            print(f"{what}: expected 0 engines alive after 3, more threads: no", file=out)
            print(
                f"{what}: actual   {engines()} engines alive after 3, "
                f"more threads: {'yes' if threads() > had + 3 else 'no'}",
                file=out,
            )
        out.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
