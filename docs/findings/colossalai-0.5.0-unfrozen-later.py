"""A stage that is frozen in the first training step never gets gradients in later ones, without an error.

What: freeze the first stage, train a step, then unfreeze it (gradual unfreezing, as in fine-tuning). In the next step,
  and in every later one, its gradients are None; the loss is right, nothing is raised. The other way round, a stage
  that is frozen after the first step ends the next one in "element 0 of tensors does not require grad and does not
  have a grad_fn" on its rank, and the other rank waits.
Where: ColossalAI 0.5.0 (and main of April 2026), colossalai/pipeline/schedule/one_f_one_b.py: recv_forward, line 133,
  and send_backward_recv_forward, line 240, set `self.tensor_metadata_recv = create_send_metadata(input_tensor)` once;
  for gradients recv_backward, line 154, and send_forward_recv_backward, line 212, set `self.grad_metadata_recv`.
Why: create_send_metadata (colossalai/pipeline/p2p.py, line 191) records requires_grad beside shape and dtype. The
  second stage keeps that of the first microbatch (its sender tells it once only: one_f_one_b.py, lines 170 and 210),
  and receives all later ones into buffers made with it (p2p.py, _create_recv_buffer, line 222). Its input thus never
  needs a gradient, and it sends an empty dict of gradients (backward_step, line 323). The first stage, which has kept
  that the dict is empty, goes backwards from nothing (line 307). A stage that is frozen later is still sent gradients,
  and goes backwards from an output that needs none.
Requirement: TRN-28.
Schedules: OneForwardOneBackwardSchedule with enable_metadata_cache=True, the default; with False all is right (others
  were not tried). An evaluation between the steps changes nothing. One before the first training step makes all right,
  by chance: load_batch compares its size with that of a batch before it, of which there is none, and switches the cache
  off for good (line 101).
Possible fix: let every floating-point tensor that is received as an input need a gradient, whatever its sender says,
  and leave out of the backward what needs none (tried: all cases below are then right).
"""

import os
import sys
import tempfile
import time
import types
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

WORLD, M = 2, 2  # ranks, microbatches
PATIENCE = 10  # seconds after the other rank has ended; a step takes a few milliseconds
WAITS = "  rank {0}: waits for the other rank\n"
FROZEN, TRAINED, EVALUATED = "frozen", "trainable", "evaluation"

# what stage 0 is in each step; enable_metadata_cache
CASES = (
    ((TRAINED, TRAINED), True),
    ((FROZEN, FROZEN), True),
    ((FROZEN, TRAINED, TRAINED), True),
    ((FROZEN, EVALUATED, TRAINED), True),
    ((EVALUATED, FROZEN, TRAINED), True),
    ((TRAINED, FROZEN), True),
    ((FROZEN, TRAINED, TRAINED), False),
    ((TRAINED, FROZEN), False),
)


class Stage(nn.Linear):
    def __init__(self, last):
        super().__init__(3, 3)
        self.last = last

    def forward(self, x, y=None, hidden=None):
        output = super().forward(x if hidden is None else hidden)
        return output if self.last else {"hidden": output}


def model():
    torch.manual_seed(0)
    return [Stage(False), Stage(True)]


def batch():
    torch.manual_seed(1)
    return {"x": torch.randn(M, 3), "y": torch.randn(M, 3)}


def criterion(output, microbatch):
    return nn.functional.mse_loss(output, microbatch["y"])


def expected(step):
    """The loss, and the gradient of each stage's weight, of the model in one piece."""
    stages, data = model(), batch()
    stages[0].requires_grad_(step != FROZEN)
    loss = criterion(stages[1](data["x"], **stages[0](data["x"])), data)
    if step != EVALUATED:
        loss.backward()
    return loss.detach(), [stage.weight.grad for stage in stages]


def told(found, right):
    if found is None:
        return "None" if right is not None else "None, as it should be"
    return "right" if right is not None and torch.allclose(found, right) else "wrong"


def run(rank, steps, cache):
    """What this rank has got after each step."""
    from colossalai.cluster import ProcessGroupMesh
    from colossalai.interface import OptimizerWrapper
    from colossalai.pipeline.schedule import OneForwardOneBackwardSchedule
    from colossalai.pipeline.stage_manager import PipelineStageManager

    stage = model()[rank]
    manager = PipelineStageManager(ProcessGroupMesh(WORLD), 0)
    schedule = OneForwardOneBackwardSchedule(manager, num_microbatches=M, enable_metadata_cache=cache)
    optimizer = OptimizerWrapper(torch.optim.SGD(stage.parameters(), lr=0.1))
    lines = []
    for number, step in enumerate(steps, start=1):
        if rank == 0:
            stage.requires_grad_(step != FROZEN)
        optimizer.zero_grad()
        loss, gradients = expected(step)
        try:
            with torch.set_grad_enabled(step != EVALUATED):
                got = schedule.forward_backward_step(
                    stage, iter([batch()]), criterion, optimizer, return_loss=True
                )
        except RuntimeError as error:
            lines.append(f"step {number}: raises {str(error)[:46]}")
            break
        line = f"step {number}: gradient {told(stage.weight.grad, gradients[rank])}"
        if got["loss"] is not None:
            line += f"; loss {'right' if torch.allclose(got['loss'], loss) else 'wrong'}"
        lines.append(line)
    return "".join(f"  rank {rank}, {line}\n" for line in lines)


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
    Path(folder, f"{rank}.part").write_text(run(rank, *case))
    Path(folder, f"{rank}.part").rename(Path(folder, f"{rank}.txt"))
    time.sleep(60)  # a rank that ends would break the connection on which another waits


def import_schedules():
    """Import the schedules for gloo, for which 0.5.0 asks torch for a backend HCCL, also without peft (two names)."""
    try:
        import peft  # noqa: F401
    except ImportError:
        sys.modules["peft"] = types.SimpleNamespace(PeftModel=type("PeftModel", (), {}), PeftType=None)
    from colossalai.pipeline import p2p, schedule  # noqa: F401

    p2p._check_for_nccl_hccl_backend = lambda group: False


def outcomes(case):
    """Per rank; a rank that has shown nothing some time after the other one has ended waits for it."""
    with tempfile.TemporaryDirectory() as folder:
        make = mp.get_context("fork").Process  # the schedules are imported once
        processes = [make(target=worker, args=(rank, case, folder)) for rank in range(WORLD)]
        for process in processes:
            process.start()
        paths = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
        started, ended = time.monotonic(), None
        while not all(path.exists() for path in paths):
            if ended is None and any(path.exists() for path in paths):
                ended = time.monotonic()
            if time.monotonic() > (started + 60 if ended is None else ended + PATIENCE):
                break
            time.sleep(0.1)
        found = [path.read_text() if path.exists() else WAITS.format(rank) for rank, path in enumerate(paths)]
        for process in processes:
            process.kill()
            process.join()
    return found


def main():
    import_schedules()
    for steps, cache in CASES:
        print(f"stage 0: {', then '.join(steps)}{'' if cache else '; enable_metadata_cache=False'}")
        found = outcomes((steps, cache))
        waits = [text == WAITS.format(rank) for rank, text in enumerate(found)]
        if any(waits) and not any("raises" in text for text in found):
            sys.exit("inconclusive: a rank gave no result")
        print("".join(found), end="")


if __name__ == "__main__":
    main()
