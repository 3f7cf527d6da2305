"""After a training step eval_batch(compute_loss=False) raises on the last stage, and on no other one.

What: eval_batch can be asked for outputs instead of losses (compute_loss=False, reduce_output=None). Before the first
  training step it returns them. After one it raises on the last stage, about shapes of sums that nobody asked for; the
  stages before return, and wait in whatever they do together next.
  So does a second evaluation of this kind whose outputs have another shape, as with dynamic_shape.
Where: DeepSpeed 0.19.8, runtime/pipe/engine.py, _exec_forward_pass adds what the last stage returned to total_loss, in
  evaluations, too, where nobody reads it. train_batch begins it anew, and eval_batch does not.
Why it is one: the argument is eval_batch's, and evaluating between training steps is what eval_batch is for: its
  docstring calls it equivalent to a forward in evaluation mode without gradients.
Requirement: none (outputs are not claimed; near LIF-1).
Schedules: the one there is (TrainSchedule, InferenceSchedule).
Known: no public thread found.
Possible fix: set total_loss and total_additional_losses to None in eval_batch as well, or do not add in evaluations.
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

WORLD = 2


def worker(rank, trains, folder):
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
    deepspeed.utils.logger.setLevel("CRITICAL")
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    stages = [nn.Linear(1, 1, bias=False) for _ in range(WORLD)]
    for stage in stages:
        nn.init.constant_(stage.weight, 2.0)
    module = PipelineModule(
        stages, num_stages=WORLD, loss_fn=nn.functional.mse_loss, partition_method="uniform"
    )
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        config={"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1},
    )
    batch = (torch.ones(2, 1), torch.ones(2, 1))
    try:
        if trains:
            engine.train_batch(iter([batch]))
        found = engine.eval_batch(iter([batch]), compute_loss=False, reduce_output=None)
        said = f"returned {None if found is None else [output.tolist() for output in found]}"
    except RuntimeError as error:
        said = f"raised RuntimeError: {error}"
    Path(folder, f"{rank}.txt").write_text(said)
    while not Path(folder, "end").exists():  # a closing socket would wake the other rank up
        time.sleep(0.1)
    os._exit(0)


def main():
    for trains in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            processes = [
                mp.get_context("spawn").Process(target=worker, args=(r, trains, folder)) for r in range(WORLD)
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
            for rank, path in enumerate(paths):
                said = path.read_text() if path.exists() else "still waiting"
                print(
                    f"{'after a training step' if trains else 'at first'}, stage {rank}: {said}", flush=True
                )
            Path(folder, "end").touch()
            for process in processes:
                process.kill()


if __name__ == "__main__":
    main()
