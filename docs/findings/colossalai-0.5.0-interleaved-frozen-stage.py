"""With interleaved stages and a frozen first stage, trainable stages get no gradient, without an error.

What: the first of four stages is frozen, as an embedding is when a model is fine-tuned. In a training step of the
  interleaved schedule the stages 1 and 2, which are trainable, get no gradients; the loss is right, nothing is raised.
Where: ColossalAI 0.5.0 (and main of April 2026), colossalai/pipeline/schedule/interleaved_pp.py, recv_forward and
  send_forward_recv_forward: `self.tensor_metadata_recv`, made by create_send_metadata in colossalai/pipeline/p2p.py.
Why: shape, dtype and requires_grad of what is received are asked for once and kept, one for all stages of the rank.
  Rank 1 first receives the output of the frozen stage 0, which needs no gradient; so its stage 3 is given inputs that
  need none either, its backward ends there, and an empty dict of gradients is sent to stage 2.
Requirement: TRN-5.
Schedules: InterleavedSchedule with enable_metadata_cache=True, the default; not OneForwardOneBackwardSchedule.
Possible fix: keep metadata per stage, as ZeroBubbleVPipeScheduler does.
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
STAGES = 4


class Stage(nn.Linear):
    def __init__(self, index):
        super().__init__(3, 3)
        self.index = index

    def forward(self, x, y, **received):
        output = super().forward(received.get("hidden", x))
        return output if self.index == STAGES - 1 else {"hidden": output}


def model(*, frozen):
    torch.manual_seed(0)
    stages = [Stage(s) for s in range(STAGES)]
    if frozen:
        stages[0].requires_grad_(False)
    return stages


def batch():
    torch.manual_seed(1)
    return {"x": torch.randn(M, 3), "y": torch.randn(M, 3)}


def criterion(output, microbatch):
    return nn.functional.mse_loss(output, microbatch["y"])


def expected(*, frozen):
    """The loss, and the gradient of every stage's weight, of the model in one piece."""
    stages, data = model(frozen=frozen), batch()
    hidden = data["x"]
    for stage in stages:
        hidden = nn.functional.linear(hidden, stage.weight, stage.bias)
    loss = criterion(hidden, data)
    loss.backward()
    return loss.detach(), {s: stage.weight.grad for s, stage in enumerate(stages)}


def run(rank, frozen):
    from colossalai.cluster import ProcessGroupMesh
    from colossalai.interface import OptimizerWrapper
    from colossalai.pipeline.schedule import InterleavedSchedule
    from colossalai.pipeline.stage_manager import PipelineStageManager

    owned = [rank, rank + WORLD]
    modules = model(frozen=frozen)
    stages = nn.ModuleList(modules[s] for s in owned)
    manager = PipelineStageManager(ProcessGroupMesh(WORLD), 0, enable_interleave=True, num_model_chunks=2)
    schedule = InterleavedSchedule(manager, 2, num_microbatch=M, overlap_p2p=False)
    optimizer = OptimizerWrapper(torch.optim.SGD(stages.parameters(), lr=0.1))
    got = schedule.forward_backward_step(stages, iter([batch()]), criterion, optimizer, return_loss=True)
    loss, gradients = expected(frozen=frozen)
    lines = []
    for s in owned:
        found, right = modules[s].weight.grad, gradients[s]
        if right is None:
            told = "none expected, as it is frozen" if found is None else "one, though it is frozen"
        else:
            told = "none" if found is None else "right" if torch.allclose(found, right) else "wrong"
        lines.append(f"  stage {s}: gradient: {told}")
    if got["loss"] is not None:
        lines.append(f"  loss: {'right' if torch.allclose(got['loss'], loss) else 'wrong'}")
    return "".join(f"{line}\n" for line in lines)


def worker(rank, case, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=20),
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
    for frozen in (False, True):
        print("stage 0 is frozen" if frozen else "nothing is frozen")
        with tempfile.TemporaryDirectory() as folder:
            make = mp.get_context("spawn").Process
            processes = [make(target=worker, args=(rank, frozen, folder)) for rank in range(WORLD)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=120)
                process.kill()
            paths = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
            if not all(path.exists() for path in paths):
                sys.exit("inconclusive: a rank gave no result")
            lines = "".join(path.read_text() for path in paths).splitlines()
            print("\n".join(sorted(lines, key=lambda line: (line.startswith("  loss"), line))))


if __name__ == "__main__":
    main()
