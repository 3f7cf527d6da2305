"""eval() raises when two neighbouring stages live on one rank.

What: schedule.eval(...) ends in AssertionError "can't steal_bwd_input if this stage doesn't have backward".
Where: torch 2.13.0, distributed/pipelining/schedules.py, _PipelineScheduleRuntime._step_microbatches,
  _perform_action, lines 2573 and 2595: after a backward action the input gradient is handed to the previous
  stage of the same rank; stage.py, get_local_bwd_output, line 420, asserts has_backward.
Why: backward actions stay in the schedule during eval(); backward_one_chunk and the sends do nothing without
  has_backward, the hand-over on the same rank does not look.
Requirement: LIF-1.
Schedules: ZBVZeroBubble and DualPipeV always; Interleaved1F1B, LoopedBFS and InterleavedZeroBubble when one
  rank holds all stages.
Possible fix: hand over only "if is_prev_stage_on_this_rank and stage.has_backward".
"""

import os
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

WORLD = 2
M = 4


def build(name, rank, modules, **options):
    """This rank's schedule object, and the indices of its stages."""
    n = len(modules)
    v_shaped = name in ("ZBVZeroBubble", "DualPipeV")
    owned = [rank, n - 1 - rank] if v_shaped else list(range(rank, n, WORLD))
    stages = [PipelineStage(modules[s], s, n, torch.device("cpu")) for s in owned]
    cls = get_schedule_class(name)
    return cls(stages if issubclass(cls, PipelineScheduleMulti) else stages[0], M, **options), owned


def num_stages(name):
    return WORLD if name in ("GPipe", "1F1B") else 2 * WORLD


def run(rank, name):
    torch.manual_seed(0)
    modules = [nn.Linear(3, 3) for _ in range(2 * WORLD)]
    schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
    x = torch.randn(2 * M, 3)
    args = (x,) if 0 in owned else ()
    target = {"target": x} if len(modules) - 1 in owned else {}
    try:
        with torch.no_grad():
            schedule.eval(*args, **target)
    except AssertionError as error:
        return [f"{name}: rank {rank}: expected: no error; actual: AssertionError: {error}"]
    except RuntimeError:
        return [f"{name}: rank {rank}: expected: no error; actual: RuntimeError (the other rank is gone)"]
    return [f"{name}: rank {rank}: no error"]


def worker(rank, folder, name):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous-{name}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=20),
    )
    lines = run(rank, name)
    Path(folder, f"{name}-{rank}.txt").write_text("".join(f"{line}\n" for line in lines))
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("ZBVZeroBubble", "DualPipeV"):
            args = [(rank, folder, name) for rank in range(WORLD)]
            processes = [mp.get_context("spawn").Process(target=worker, args=a) for a in args]
            for process in processes:
                process.start()
            for process in processes:
                process.join(timeout=60)
                process.kill()
            for rank in range(WORLD):
                path = Path(folder, f"{name}-{rank}.txt")
                if not path.exists():
                    sys.exit(f"inconclusive: a rank gave no result ({path.name})")
                print(path.read_text(), end="")


if __name__ == "__main__":
    main()
