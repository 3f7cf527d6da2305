"""eval() keeps every microbatch's output on every stage after it has returned, and its graph unless under no_grad().

What: once eval() has returned and its result was dropped, each stage still holds the output and the input of each of
  the m microbatches, until the next step() or eval() begins: while a checkpoint is written, or the optimizer steps.
  Without torch.no_grad(), which the documentation of eval() ("calling forward only") does not ask for, it also holds
  the graph of each, with all activations: m microbatches, where a training step under 1F1B holds p at most. Ranks
  without the last stage are given no result that they could drop. After a training step with return_outputs=False
  nothing of this is left.
Where: torch 2.13.0, distributed/pipelining/stage.py, forward_one_chunk, line 913 (self.fwd_cache) and, on the last
  stage, line 908 (self.output_chunks); schedules.py, eval, line 528.
Why: an entry of fwd_cache is taken out by the backward of its microbatch, which an evaluation does not have. What is
  left is cleared when the next step begins (clear_runtime_states), not when this one ends. eval() does not switch
  gradients off.
Requirement: none (near LIF-2 and LIF-3).
Schedules: GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble. ZBVZeroBubble and DualPipeV cannot evaluate.
Known: https://github.com/pytorch/pytorch/issues/128910 (open; the memory that fwd_cache takes within a step). What
  last-outputs-kept shows is about the last stage's outputs only.
Possible fix: call clear_runtime_states() when a step or an evaluation ends, too, and run evaluations under no_grad().
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

WORLD, M, WIDTH = 2, 8, 3
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
CALLS = ("step(), return_outputs=False", "eval() under no_grad()", "eval()")


class Stage(nn.Module):
    """Notes what is computed between its two maps, which only the graph holds, and what it returns."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner, self.outputs, self.most = [], [], 0

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        output = self.second(hidden)
        self.inner.append(weakref.ref(hidden))
        self.outputs.append(weakref.ref(output))
        del hidden
        self.most = max(self.most, alive(self.inner))
        return output


def alive(references):
    return sum(one() is not None for one in references)


def told(modules):
    """What is alive after a call, over this rank's stages."""
    gc.collect()
    inner, outputs = sum(alive(one.inner) for one in modules), sum(alive(one.outputs) for one in modules)
    most = max(one.most for one in modules)
    return f"expected 0 and 0, actual {inner} and {outputs}; graphs of one stage at once: {most} at most"


def run(rank):
    lines = []
    for name in SCHEDULES:
        cls = get_schedule_class(name)
        several = issubclass(cls, PipelineScheduleMulti)
        n = 2 * WORLD if several else WORLD
        owned = list(range(rank, n, WORLD))
        for call in CALLS:
            torch.manual_seed(0)
            modules = [Stage() for _ in range(n)]
            x = torch.randn(2 * M, WIDTH)
            # declared shapes: no dry run, whose forward would be counted, too
            stages = []
            for s in owned:
                examples = (
                    torch.zeros(2, WIDTH, requires_grad=s > 0),
                    torch.zeros(2, WIDTH, requires_grad=True),
                )
                stages.append(
                    PipelineStage(
                        modules[s],
                        s,
                        n,
                        torch.device("cpu"),
                        input_args=examples[0],
                        output_args=examples[1],
                    )
                )
            schedule = cls(stages if several else stages[0], M, loss_fn=nn.functional.mse_loss)
            args, target = (x,) if 0 in owned else (), {"target": x} if n - 1 in owned else {}
            if call.startswith("step"):
                schedule.step(*args, **target, return_outputs=False)
            else:
                with torch.set_grad_enabled(call == "eval()"):
                    schedule.eval(*args, **target)
            mine = [modules[s] for s in owned]
            lines.append(f"  {name}, {call}, rank {rank} with stages {owned}: {told(mine)}")
    return lines


def worker(rank, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    lines = run(rank)
    dist.barrier()
    Path(folder, f"{rank}.txt").write_text("".join(f"{line}\n" for line in lines))
    os._exit(0)


def main():
    print(
        f"microbatches whose graphs, and whose outputs, are alive after a call, over a rank's stages; m = {M}"
    )
    modules = [Stage() for _ in range(WORLD)]
    for x_mb in torch.randn(2 * M, WIDTH).tensor_split(M):
        nn.Sequential(*modules)(x_mb)
    print(f"  the modules called one after the other, without a pipeline: {told(modules)}")
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
