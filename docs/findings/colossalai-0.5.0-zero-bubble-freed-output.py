"""A stage that ends in ReLU crashes the zero-bubble schedule: its output is freed, though its backward reads it.

What: with stages that end in ReLU, Tanh or another function that keeps its output for the backward, the process dies
  by SIGSEGV, or the backward raises an error about a storage of size 0. A stage that hands on one of its inputs, as a
  mask is handed on, frees the batch: the next microbatch cannot be cut from it.
Where: ColossalAI 0.5.0 (and main of April 2026), colossalai/pipeline/schedule/zero_bubble_pp.py, schedule_f:
  `tree_map(release_tensor_data, output_obj)`, with release_tensor_data of colossalai/pipeline/schedule/_utils.py.
Why: the memory of every output is freed by `untyped_storage().resize_(0)` as soon as a copy of it is there, by a
  comment because "we only need the graph(grad_fn) of output_obj". Functions that save their output (and views, and what
  is handed on) share that memory.
Requirement: FWD-28, FWD-14, FWD-5.
Schedules: ZeroBubbleVPipeScheduler.
Possible fix: `output.data = torch.empty(...)`, which leaves the memory to whom else it belongs, as Megatron's
  deallocate_output_tensor does.
"""

import os
import signal
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
CASES = ("Linear", "Linear, Tanh", "Linear, ReLU", "Linear, and hands on its input")


class Stage(nn.Module):
    def __init__(self, index, case):
        super().__init__()
        self.index, self.hands_on = index, case.endswith("its input")
        after = {"Linear, Tanh": nn.Tanh(), "Linear, ReLU": nn.ReLU()}.get(case, nn.Identity())
        self.layers = nn.Sequential(nn.Linear(64, 64), after)

    def forward(self, x, hidden=None, given=None):
        output = self.layers(x if hidden is None else hidden)
        if self.index == STAGES - 1:
            return output
        return {"hidden": output, **({"given": x if given is None else given} if self.hands_on else {})}


class Chunks(nn.Module):
    """Both stages of a rank, called as the schedule calls a model."""

    def __init__(self, stages):
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, x, y, stage_index, **received):
        return self.stages[stage_index](x, **received)

    def no_sync(self):
        return nullcontext()


def model(case):
    torch.manual_seed(0)
    return [Stage(s, case) for s in range(STAGES)]


def batch():
    torch.manual_seed(1)
    return {"x": torch.randn(M, 64), "y": torch.randn(M, 64)}


def criterion(output, microbatch):
    return nn.functional.mse_loss(output, microbatch["y"])


def expected(case):
    """The gradients of all parameters of each stage, of the model in one piece."""
    stages, data = model(case), batch()
    criterion(nn.Sequential(*(stage.layers for stage in stages))(data["x"]), data).backward()
    return [[p.grad for p in stage.parameters()] for stage in stages]


def run(rank, case):
    from colossalai.cluster import ProcessGroupMesh
    from colossalai.interface import OptimizerWrapper
    from colossalai.pipeline.schedule import ZeroBubbleVPipeScheduler
    from colossalai.pipeline.schedule.v_schedule import PipelineGraph
    from colossalai.pipeline.stage_manager import PipelineStageManager

    owned = [rank, STAGES - 1 - rank]
    modules = model(case)
    stages = Chunks([modules[s] for s in owned])
    manager = PipelineStageManager(
        ProcessGroupMesh(WORLD), 0, enable_interleave=True, num_model_chunks=2, use_zbv=True
    )
    manager.stage_indices = [0, 1]
    costs = {"f_cost": 1, "b_cost": 1, "w_cost": 1, "c_cost": 1, "f_mem": 10, "b_mem": -4, "w_mem": -6}
    table = PipelineGraph(n_stage=WORLD, n_micro=M, **costs).get_v_schedule()
    schedule = ZeroBubbleVPipeScheduler(manager, table, 2, num_microbatch=M, overlap_p2p=False)
    optimizer = OptimizerWrapper(torch.optim.SGD(stages.parameters(), lr=0.1))
    try:
        schedule.forward_backward_step(stages, iter([batch()]), criterion, optimizer, return_loss=True)
    except RuntimeError as error:
        return told(error)
    right = expected(case)
    if all(
        torch.allclose(p.grad, g)
        for s in owned
        for p, g in zip(modules[s].parameters(), right[s], strict=True)
    ):
        return "the right gradients"
    return "wrong gradients"


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
        print(f"stages: {case}")
        with tempfile.TemporaryDirectory() as folder:
            make = mp.get_context("spawn").Process
            processes = [make(target=worker, args=(rank, case, folder)) for rank in range(WORLD)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=60)
                process.kill()
            for rank, process in enumerate(processes):
                path = Path(folder, f"{rank}.txt")
                if path.exists():
                    told = path.read_text()
                elif process.exitcode == -signal.SIGSEGV:
                    told = "died by SIGSEGV"
                else:
                    told = "waits for another rank, or was ended with it"
                print(f"  rank {rank}: {told}")


if __name__ == "__main__":
    main()
