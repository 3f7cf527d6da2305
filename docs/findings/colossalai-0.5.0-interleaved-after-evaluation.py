"""After an evaluation, or with enable_metadata_cache=False, the interleaved schedule waits for ever.

What: the first evaluation of interleaved stages, or one with another batch size than the step before, is followed by
  a step that never ends: two ranks wait for each other. With enable_metadata_cache=False the first step does.
Where: ColossalAI 0.5.0 (and main of April 2026), colossalai/pipeline/schedule/interleaved_pp.py,
  send_forward_recv_forward and send_backward_recv_backward:
  `self.send_tensor_metadata = not self.enable_metadata_cache and is_send`.
Why: where a rank had nothing to send (its last stage is the model's last), metadata is not sent with the next output
  either, though no receiver has kept any. An evaluation switches the cache off for good (load_batch, `forward_only`
  and a batch size that is not the last one's, which the first one always is).
Requirement: SCH-9, TRN-19, LIF-1.
Schedules: InterleavedSchedule; not OneForwardOneBackwardSchedule.
Possible fix: `not self.enable_metadata_cache or (self.send_tensor_metadata and not is_send)`.
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
CASES = {
    "train, train": {"steps": ("train", "train")},
    "train, evaluate the same number of samples, train": {"steps": ("train", "evaluate", "train")},
    "evaluate, train": {"steps": ("evaluate", "train")},
    "train, evaluate twice as many samples, twice": {"steps": ("train", "evaluate more", "evaluate more")},
    "train, enable_metadata_cache=False": {"steps": ("train",), "enable_metadata_cache": False},
}
PATIENCE = 15  # seconds; a step takes a few milliseconds


class Stage(nn.Linear):
    def __init__(self, index):
        super().__init__(3, 3)
        self.index = index

    def forward(self, x, y, **received):
        output = super().forward(received.get("hidden", x))
        return output if self.index == STAGES - 1 else {"hidden": output}


def criterion(output, microbatch):
    return nn.functional.mse_loss(output, microbatch["y"])


def run(rank, case):
    from colossalai.cluster import ProcessGroupMesh
    from colossalai.interface import OptimizerWrapper
    from colossalai.pipeline.schedule import InterleavedSchedule
    from colossalai.pipeline.stage_manager import PipelineStageManager

    options = dict(CASES[case])
    steps = options.pop("steps")
    stages = nn.ModuleList(Stage(s) for s in (rank, rank + WORLD))
    manager = PipelineStageManager(ProcessGroupMesh(WORLD), 0, enable_interleave=True, num_model_chunks=2)
    schedule = InterleavedSchedule(manager, 2, num_microbatch=M, overlap_p2p=False, **options)
    optimizer = OptimizerWrapper(torch.optim.SGD(stages.parameters(), lr=0.1))
    for step in steps:
        samples = 2 * M if step == "evaluate more" else M
        data = {"x": torch.randn(samples, 3), "y": torch.randn(samples, 3)}
        with torch.set_grad_enabled(step == "train"):
            schedule.forward_backward_step(
                stages, iter([data]), criterion, optimizer if step == "train" else None, return_loss=True
            )
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
    for case in CASES:
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
            if all(Path(folder, f"{rank}.txt").exists() for rank in range(WORLD)):
                print(f"{case}: ended")
            elif all(waits):
                print(f"{case}: both ranks wait")
            else:
                sys.exit(f"inconclusive: {case}: exit codes {[process.exitcode for process in processes]}")


if __name__ == "__main__":
    main()
