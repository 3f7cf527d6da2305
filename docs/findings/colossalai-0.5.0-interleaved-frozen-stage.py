"""With interleaved stages and a frozen first stage, trainable stages get no gradient, without an error.

What: the first of four stages is frozen, as an embedding is when a model is fine-tuned. In a training step of the
  interleaved schedule the stages 1 and 2, which are trainable, get no gradients; the loss is right, nothing is raised.
Where: ColossalAI 0.5.0 (and main of April 2026), colossalai/pipeline/schedule/interleaved_pp.py, recv_forward and
  send_forward_recv_forward: `self.tensor_metadata_recv`, made by create_send_metadata in colossalai/pipeline/p2p.py.
Why: shape, dtype and requires_grad of what is received are asked for once and kept, one for all stages of the rank.
  Rank 1 first receives the output of the frozen stage 0, which needs no gradient; so its stage 3 is given inputs that
  need none either, its backward ends there, and an empty dict of gradients is sent to stage 2.
  Gradients are kept likewise: where two stages of a rank get gradients of different tensors, as with a skip
  connection, messages do not fit, and ranks wait (or, on three ranks, gradients are wrong).
Requirement: TRN-5, FWD-10, FWD-12, TRN-15.
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
PATIENCE = 15  # seconds; a step takes a few milliseconds


CASES = ("nothing special", "stage 0 is frozen", "stage 2 adds what stage 0 hands on beside its output")


class Stage(nn.Linear):
    def __init__(self, index, case):
        super().__init__(3, 3)
        self.index, self.skips = index, case.startswith("stage 2")
        if index == 0 and case == "stage 0 is frozen":
            self.requires_grad_(False)

    def forward(self, x, y=None, hidden=None, early=None):
        output = super().forward(x if hidden is None else hidden)
        early = output * 2 if self.skips and self.index == 0 else early
        if self.skips and self.index == 2:
            output = output + early
        if self.index == STAGES - 1:
            return output
        return {"hidden": output, "early": early} if self.skips else {"hidden": output}


def model(case):
    torch.manual_seed(0)
    return [Stage(s, case) for s in range(STAGES)]


def batch():
    torch.manual_seed(1)
    return {"x": torch.randn(M, 3), "y": torch.randn(M, 3)}


def criterion(output, microbatch):
    return nn.functional.mse_loss(output, microbatch["y"])


def expected(case):
    """The loss, and the gradient of every stage's weight, of the model in one piece."""
    stages, data = model(case), batch()
    passed = {}
    for stage in stages[:-1]:
        passed = stage(data["x"], **passed)
    loss = criterion(stages[-1](data["x"], **passed), data)
    loss.backward()
    return loss.detach(), {s: stage.weight.grad for s, stage in enumerate(stages)}


def run(rank, case):
    from colossalai.cluster import ProcessGroupMesh
    from colossalai.interface import OptimizerWrapper
    from colossalai.pipeline.schedule import InterleavedSchedule
    from colossalai.pipeline.stage_manager import PipelineStageManager

    owned = [rank, rank + WORLD]
    modules = model(case)
    stages = nn.ModuleList(modules[s] for s in owned)
    manager = PipelineStageManager(ProcessGroupMesh(WORLD), 0, enable_interleave=True, num_model_chunks=2)
    schedule = InterleavedSchedule(manager, 2, num_microbatch=M, overlap_p2p=False)
    optimizer = OptimizerWrapper(torch.optim.SGD(stages.parameters(), lr=0.1))
    got = schedule.forward_backward_step(stages, iter([batch()]), criterion, optimizer, return_loss=True)
    dist.barrier()
    loss, gradients = expected(case)
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
                process.join(timeout=PATIENCE + 30 * (process is processes[0]))
            waits = [process.exitcode is None for process in processes]
            for process in processes:
                process.kill()
            paths = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
            if all(waits):
                print("  both ranks wait")
                continue
            if not all(path.exists() for path in paths):
                sys.exit("inconclusive: a rank gave no result")
            lines = "".join(path.read_text() for path in paths).splitlines()
            print("\n".join(sorted(lines, key=lambda line: (line.startswith("  loss"), line))))


if __name__ == "__main__":
    main()
