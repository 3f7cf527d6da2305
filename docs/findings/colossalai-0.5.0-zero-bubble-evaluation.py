"""The zero-bubble schedule cannot evaluate: an AttributeError on every rank.

What: forward_backward_step under torch.no_grad() raises AttributeError: 'list' object has no attribute 'type'.
Where: ColossalAI 0.5.0 (and main of April 2026), colossalai/pipeline/schedule/zero_bubble_pp.py, run_forward_only.
Why: it walks over the schedules of all ranks where run_forward_backward takes that of its own,
  `self.schedules[self.stage_manager.stage]`.
Requirement: SCH-9.
Schedules: ZeroBubbleVPipeScheduler.
Possible fix: as there, take this rank's schedule.
"""

import os
import sys
import tempfile
import types
import warnings
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD, M = 2, 4  # ranks, microbatches
STAGES = 4


class Stage(nn.Linear):
    def __init__(self, index):
        super().__init__(3, 3)
        self.index = index

    def forward(self, x, hidden=None):
        output = super().forward(x if hidden is None else hidden)
        return output if self.index == STAGES - 1 else {"hidden": output}


class Chunks(nn.Module):
    """Both stages of a rank, called as the schedule calls a model."""

    def __init__(self, stages):
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x, y, stage_index, **received):
        return self.stages[stage_index](x, **received)

    def no_sync(self):
        return nullcontext()


def criterion(output, microbatch):
    return nn.functional.mse_loss(output, microbatch["y"])


def run(rank, case):
    from colossalai.cluster import ProcessGroupMesh
    from colossalai.interface import OptimizerWrapper
    from colossalai.pipeline.schedule import ZeroBubbleVPipeScheduler
    from colossalai.pipeline.schedule.v_schedule import PipelineGraph
    from colossalai.pipeline.stage_manager import PipelineStageManager

    stages = Chunks([Stage(rank), Stage(STAGES - 1 - rank)])
    manager = PipelineStageManager(
        ProcessGroupMesh(WORLD), 0, enable_interleave=True, num_model_chunks=2, use_zbv=True
    )
    manager.stage_indices = [0, 1]
    costs = {"f_cost": 1, "b_cost": 1, "w_cost": 1, "c_cost": 1, "f_mem": 10, "b_mem": -4, "w_mem": -6}
    table = PipelineGraph(n_stage=WORLD, n_micro=M, **costs).get_v_schedule()
    schedule = ZeroBubbleVPipeScheduler(manager, table, 2, num_microbatch=M, overlap_p2p=False)
    optimizer = OptimizerWrapper(torch.optim.SGD(stages.parameters(), lr=0.1))
    data = {"x": torch.randn(M, 3), "y": torch.randn(M, 3)}
    trains = case == "training"
    try:
        with torch.set_grad_enabled(trains):
            schedule.forward_backward_step(
                stages, iter([data]), criterion, optimizer if trains else None, return_loss=True
            )
    except AttributeError as error:
        return f"AttributeError: {error}"
    return "ended"


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
    for case in ("training", "evaluation"):
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
                print(f"{case}, rank {rank}: {path.read_text()}")


if __name__ == "__main__":
    main()
