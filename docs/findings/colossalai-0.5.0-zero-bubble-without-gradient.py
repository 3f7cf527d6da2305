"""The zero-bubble schedule cannot train a model whose first stage is frozen, or with an output that nobody uses.

What: a frozen first stage (an embedding, when a model is fine-tuned), or a tensor that a stage hands on and no stage
  uses, ends the step in an error about the backward's arguments; other ranks return or wait.
Where: ColossalAI 0.5.0 (and main of April 2026), colossalai/pipeline/schedule/zero_bubble_pp.py, backward_b_step.
Why: the backward is called with all outputs of a stage and with the gradients that arrived, whether the outputs need a
  gradient or not, and whether there is one gradient for each: gradients that are None are not sent.
Requirement: TRN-5, FWD-12.
Schedules: ZeroBubbleVPipeScheduler. OneForwardOneBackwardSchedule takes the outputs by the names of the gradients.
Known: near https://github.com/hpcaitech/ColossalAI/issues/6225 (the same error in a fine-tuning with LoRA; closed).
Possible fix: as in OneForwardOneBackwardSchedule, and no backward of what needs none.
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
CASES = ("nothing special", "the first stage is frozen", "stage 0 hands on a tensor that no stage uses")


class Stage(nn.Linear):
    def __init__(self, index, case):
        super().__init__(3, 3)
        self.index, self.adds = index, index == 0 and case.startswith("stage 0")

    def forward(self, x, hidden=None, unused=None):
        output = super().forward(x if hidden is None else hidden)
        if self.index == STAGES - 1:
            return output
        return {"hidden": output, **({"unused": output * 2} if self.adds else {})}


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

    modules = [Stage(rank, case), Stage(STAGES - 1 - rank, case)]
    if rank == 0 and case == "the first stage is frozen":
        modules[0].requires_grad_(False)
    stages = Chunks(modules)
    manager = PipelineStageManager(
        ProcessGroupMesh(WORLD), 0, enable_interleave=True, num_model_chunks=2, use_zbv=True
    )
    manager.stage_indices = [0, 1]
    costs = {"f_cost": 1, "b_cost": 1, "w_cost": 1, "c_cost": 1, "f_mem": 10, "b_mem": -4, "w_mem": -6}
    table = PipelineGraph(n_stage=WORLD, n_micro=M, **costs).get_v_schedule()
    schedule = ZeroBubbleVPipeScheduler(manager, table, 2, num_microbatch=M, overlap_p2p=False)
    optimizer = OptimizerWrapper(torch.optim.SGD(stages.parameters(), lr=0.1))
    data = {"x": torch.randn(M, 3), "y": torch.randn(M, 3)}
    try:
        schedule.forward_backward_step(stages, iter([data]), criterion, optimizer, return_loss=True)
    except RuntimeError as error:
        return told(error)
    return "ended"


def told(error):
    line = str(error).splitlines()[0]
    return "its connection to the other rank ends" if "gloo" in line else f"RuntimeError: {line}"


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
        print(case)
        with tempfile.TemporaryDirectory() as folder:
            make = mp.get_context("spawn").Process
            processes = [make(target=worker, args=(rank, case, folder)) for rank in range(WORLD)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=40)
                process.kill()
            for rank in range(WORLD):
                path = Path(folder, f"{rank}.txt")
                print(f"  rank {rank}: {path.read_text() if path.exists() else 'waits for another rank'}")


if __name__ == "__main__":
    main()
