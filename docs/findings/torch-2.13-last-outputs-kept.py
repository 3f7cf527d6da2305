"""The last stage's outputs stay alive until the next step.

What: after step() has returned, and after its merged output was dropped, the output of every microbatch is still
  alive on the last stage's rank: as many bytes as the merged output, during the optimizer's step and until the
  next step() or eval() begins.
Where: torch 2.13.0, distributed/pipelining/stage.py, _PipelineStageBase.forward_one_chunk, line 908
  (self.output_chunks.append), cleared at the beginning of the next step only (clear_runtime_states, line 604,
  called from schedules.py, lines 772 and 1972).
Why: the chunks are kept for the merge, and nobody clears them after it.
Requirement: LIF-3.
Known: https://github.com/pytorch/pytorch/issues/159251, closed by the option return_outputs.
Schedules: all; not with return_outputs=False.
Possible fix: clear output_chunks when the merged output has been made.
"""

import gc
import os
import sys
import tempfile
import warnings
import weakref
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

WORLD = 2
M = 8
NAMES = (
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)


def num_stages(name):
    return WORLD if name in ("GPipe", "1F1B") else 2 * WORLD


def build(name, rank, modules, **options):
    """This rank's schedule object, and the indices of its stages."""
    n = len(modules)
    v_shaped = name in ("ZBVZeroBubble", "DualPipeV")
    owned = [rank, n - 1 - rank] if v_shaped else list(range(rank, n, WORLD))
    stages = [PipelineStage(modules[s], s, n, torch.device("cpu")) for s in owned]
    cls = get_schedule_class(name)
    return cls(stages if issubclass(cls, PipelineScheduleMulti) else stages[0], M, **options), owned


def run(rank):
    lines = []
    for name in NAMES:
        for returned in (True, False):
            torch.manual_seed(0)
            n = num_stages(name)
            modules = [nn.Linear(4, 4) for _ in range(n)]
            schedule, owned = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
            outputs = []
            modules[-1].register_forward_hook(
                lambda m, a, out, outputs=outputs: outputs.append(weakref.ref(out))
            )
            x = torch.randn(2 * M, 4)
            schedule.step(
                *((x,) if 0 in owned else ()),
                **({"target": x} if n - 1 in owned else {}),
                return_outputs=returned,
            )
            gc.collect()
            alive = sum(one() is not None for one in outputs)
            if n - 1 in owned:
                lines.append(
                    f"{name}, return_outputs={returned}: outputs of the last stage alive after the step: "
                    f"expected 0, actual {alive}"
                )
    return lines


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=20),
    )
    lines = run(rank)
    Path(folder, f"{rank}.txt").write_text("".join(f"{line}\n" for line in lines))
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes = [mp.get_context("spawn").Process(target=worker, args=(r, folder)) for r in range(WORLD)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(timeout=60)
            process.kill()
        for rank in range(WORLD):
            path = Path(folder, f"{rank}.txt")
            if not path.exists():
                sys.exit(f"inconclusive: a rank gave no result ({path.name})")
            print(path.read_text(), end="")


if __name__ == "__main__":
    main()
