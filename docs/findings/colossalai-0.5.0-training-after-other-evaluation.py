"""After an evaluation with another batch size, training ends in an AssertionError, for good.

What: an evaluation may have another batch size than training (the schedule makes room for it). The next training step
  raises an AssertionError without a message, on every rank, and so does every later one.
Where: ColossalAI 0.5.0 (and main of April 2026), colossalai/pipeline/schedule/one_f_one_b.py, load_batch (likewise in
  interleaved_pp.py and zero_bubble_pp.py): `assert self.last_batch_size is None or self.last_batch_size ==
  self.batch_size`, and `self.num_microbatches = ...` where it only evaluates.
Why: both are kept from the evaluation: the size of its batch, and its number of microbatches.
Requirement: none (near LIF-1, which evaluates batches of the training's size).
Schedules: all three.
Possible fix: keep the sizes of training and evaluation apart.
"""

import os
import sys
import tempfile
import types
import warnings
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD, M = 2, 4  # ranks, microbatches
CASES = ((4, 4), (8, 4), (2, 4))  # samples of an evaluation, and of the trainings around it


class Stage(nn.Linear):
    def __init__(self, rank):
        super().__init__(3, 3)
        self.is_last = rank == WORLD - 1

    def forward(self, x, y, hidden=None):
        output = super().forward(x if hidden is None else hidden)
        return output if self.is_last else {"hidden": output}


def criterion(output, microbatch):
    return nn.functional.mse_loss(output, microbatch["y"])


def run(rank, case):
    from colossalai.cluster import ProcessGroupMesh
    from colossalai.interface import OptimizerWrapper
    from colossalai.pipeline.schedule import OneForwardOneBackwardSchedule
    from colossalai.pipeline.stage_manager import PipelineStageManager

    evaluated, trained = case
    stage = Stage(rank)
    manager = PipelineStageManager(ProcessGroupMesh(WORLD), 0)
    schedule = OneForwardOneBackwardSchedule(manager, num_microbatches=M)
    optimizer = OptimizerWrapper(torch.optim.SGD(stage.parameters(), lr=0.1))
    for samples, trains in ((trained, True), (evaluated, False), (trained, True)):
        data = {"x": torch.randn(samples, 3), "y": torch.randn(samples, 3)}
        try:
            with torch.set_grad_enabled(trains):
                schedule.forward_backward_step(
                    stage, iter([data]), criterion, optimizer if trains else None, return_loss=True
                )
        except AssertionError:
            return f"{'training' if trains else 'evaluation'} raises AssertionError"
    return "all three steps end"


def worker(rank, case, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    import_schedules()
    Path(folder, f"{rank}.txt").write_text(run(rank, case))
    with suppress(RuntimeError):  # the other rank may have ended
        dist.barrier()
    os._exit(0)


def import_schedules():
    """Import the schedules for gloo, for which 0.5.0 asks torch for a backend HCCL, also without peft (two names)."""
    try:
        import peft  # noqa: F401
    except ImportError:
        sys.modules["peft"] = types.SimpleNamespace(PeftModel=type("PeftModel", (), {}), PeftType=None)
    from colossalai.pipeline import p2p

    p2p._check_for_nccl_hccl_backend = lambda group: False


def main():
    for case in CASES:
        print("training with {1} samples, evaluation with {0}, training with {1}".format(*case))
        with tempfile.TemporaryDirectory() as folder:
            make = mp.get_context("spawn").Process
            processes = [make(target=worker, args=(rank, case, folder)) for rank in range(WORLD)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=60)
                process.kill()
            for rank in range(WORLD):
                path = Path(folder, f"{rank}.txt")
                if not path.exists():
                    sys.exit(f"inconclusive: a rank gave no result ({path.name})")
                print(f"  rank {rank}: {path.read_text()}")


if __name__ == "__main__":
    main()
