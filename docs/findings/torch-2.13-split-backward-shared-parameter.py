"""Split backward counts a parameter twice, or raises, when it meets the input's path in several groups.

What: two parameters a and b, and c used with both (a shared bias, a shared low-rank delta), registered after
  them. Gradients of c, and of a, b or both, come out doubled when the nodes involved save nothing for the
  backward; when they do (two linear maps with a common bias), "Trying to backward through the graph a second
  time" is raised.
Where: torch 2.13.0, distributed/pipelining/_backward.py, get_param_groups, lines 113-125.
Why: c meets the groups of a and of b. It is merged into the first, then the first into the second, but the
  nodes of the first group still point to the old one: both groups stay, and a and c are in both.
Chance: the nodes are met in the order of a Python set, which is that of their addresses. Backward passes of one
  model with a shared bias raised 25, 154 and 172 times of 200 in three processes.
Requirement: SPL-1, FWD-13.
Schedules: InterleavedZeroBubble, ZBVZeroBubble, DualPipeV; every stage but the first.
Known: https://github.com/pytorch/pytorch/issues/180952 is near (one parameter at two places); its fix
  (pull request 181365) is in 2.13.0 and does not help here.
Possible fix: when groups merge, let every node of the merged group point to the one that stays (union-find).
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

WORLD = 1
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


def reference(modules, x, target, loss_fn):
    """The same loss without a pipeline: mean over the microbatches."""
    for x_mb, target_mb in zip(x.tensor_split(M), target.tensor_split(M), strict=True):
        for module in modules:
            x_mb = module(x_mb)
        (loss_fn(x_mb, target_mb) / M).backward()


class Silent(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.randn(3)) for _ in range(3))

    def forward(self, x):
        return torch.tanh((x + (self.a + self.c)) * (x + (self.b + self.c)))


class Raising(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(3, 3)) for _ in range(2))
        self.c = nn.Parameter(torch.randn(3))

    def forward(self, x):
        h = torch.tanh(nn.functional.linear(x, self.a, self.c))
        return torch.tanh(nn.functional.linear(h, self.b, self.c))


def run(rank):
    lines = []
    for module in (Silent, Raising):
        for name in ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"):
            torch.manual_seed(0)
            modules = [module(), module()]
            torch.manual_seed(0)
            same = [module(), module()]
            schedule, _ = build(name, rank, modules, loss_fn=nn.functional.mse_loss)
            x = torch.randn(2 * M, 3)
            try:
                schedule.step(x, target=x)
            except RuntimeError as error:
                lines.append(f"{name}, {module.__name__}: expected: no error; actual: {str(error)[:57]}")
                continue
            reference(same, x, x, nn.functional.mse_loss)
            pairs = zip(modules[1].named_parameters(), same[1].parameters(), strict=True)
            wrong = [n for (n, a), e in pairs if not torch.allclose(a.grad, e.grad, atol=1e-6)]
            # which of them are wrong besides c depends on the order of a set, from run to run
            told = "c and another" if "c" in wrong and len(wrong) > 1 else wrong
            lines.append(f"{name}, {module.__name__}: wrong gradients in stage 1: expected [], actual {told}")
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
            text = path.read_text()
            print(text, end="")
            if any("actual []" in line and "Interleaved1F1B" not in line for line in text.splitlines()):
                sys.exit("inconclusive: this time the nodes were met in an order in which nothing is wrong")


if __name__ == "__main__":
    main()
