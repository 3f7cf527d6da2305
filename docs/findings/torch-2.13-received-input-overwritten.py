"""What a stage or a hook keeps of its input is overwritten in the next step.

What: a stage that keeps its input for the next step, detached, such as the hidden states of the last segment or a queue
  of features, finds the next step's input there: with a state for each microbatch, exactly the input that it is just
  given. Losses are wrong from the second step on, without an error. So do hooks that keep inputs to log or compare
  them. Within one step all is right; so are the first stage and a neighbour on the same rank, and so is a clone. The
  same modules are right without a pipeline, where nothing writes to an input after the call.
Where: torch 2.13.0, distributed/pipelining/stage.py, _retrieve_recv_activations, line 685: the receive buffer of a
  microbatch, which serves every step, is handed to the module as it is; made in _setup_forward_recv_info, line 2244.
Why: a buffer belongs to the number of a microbatch, and the next step's microbatch of this number is received into it
  whether or not somebody else still uses it.
Requirement: FWD-35.
Schedules: all; every stage whose input comes from another rank.
Known: https://github.com/pytorch/pytorch/issues/185331 (open; tensor hooks that stay on these buffers),
  https://github.com/pytorch/pytorch/pull/185355 (open), which clones the buffer, and
  https://github.com/pytorch/pytorch/pull/196463, which makes new buffers in each step.
Possible fix: new buffers in each step, as in the last of these.
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

WORLD, M, WIDTH, STEPS = 2, 4, 3, 3
SCHEDULES = (
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)


class Stage(nn.Module):
    """Adds what the microbatch of the same number was in the step before."""

    def __init__(self, clones):
        super().__init__()
        self.linear, self.clones, self.kept = nn.Linear(WIDTH, WIDTH), clones, []

    def forward(self, x):
        before = self.kept.pop(0) if len(self.kept) == M else torch.zeros_like(x)
        self.kept.append(x.detach().clone() if self.clones else x.detach())
        return torch.tanh(self.linear(x) + before)


def model(n, clones):
    torch.manual_seed(0)
    return [Stage(clones) for _ in range(n)]


def batches():
    torch.manual_seed(1)
    return [(torch.randn(2 * M, WIDTH), torch.randn(2 * M, WIDTH)) for _ in range(STEPS)]


def expected(n):
    """The mean loss of each step, without a pipeline."""
    modules, found = model(n, False), []
    for x, y in batches():
        losses = []
        for x_mb, y_mb in zip(x.tensor_split(M), y.tensor_split(M), strict=True):
            losses.append(float(nn.functional.mse_loss(nn.Sequential(*modules)(x_mb), y_mb)))
        found.append(round(sum(losses) / M, 3))
    return found


def run(rank):
    lines = []
    for name in SCHEDULES:
        cls = get_schedule_class(name)
        several, v_shaped = issubclass(cls, PipelineScheduleMulti), name in ("ZBVZeroBubble", "DualPipeV")
        n = 2 * WORLD if several else WORLD
        owned = [rank, n - 1 - rank] if v_shaped else list(range(rank, n, WORLD))
        for clones in (True, False):
            modules = model(n, clones)
            inputs = {s: [] for s in owned}  # of all steps, each with a copy made when it was given
            stages = []
            for s in owned:
                modules[s].register_forward_pre_hook(
                    lambda _, args, kept=inputs[s]: kept.append((args[0], args[0].detach().clone()))
                )
                needs, out = s > 0, torch.zeros(2, WIDTH, requires_grad=True)
                given = torch.zeros(2, WIDTH, requires_grad=needs)  # declared shapes: no dry run
                stages.append(
                    PipelineStage(modules[s], s, n, torch.device("cpu"), input_args=given, output_args=out)
                )
            schedule = cls(stages if several else stages[0], M, loss_fn=nn.functional.mse_loss)
            found, changed = [], []
            for x, y in batches():
                losses = []
                args, target = (x,) if 0 in owned else (), {"target": y} if n - 1 in owned else {}
                schedule.step(*args, **target, losses=losses)
                if losses:
                    found.append(round(float(sum(losses)) / M, 3))
                changed.append({s: sum(not torch.equal(*one) for one in inputs[s][:M]) for s in owned})
            how = "a clone is kept" if clones else "the input is kept"
            if n - 1 in owned:
                lines.append(
                    f"  {name}, {how}, losses of {STEPS} steps: expected {expected(n)}, actual {found}"
                )
            if not clones:
                lines.append(
                    f"  {name}, rank {rank}, step 1's inputs with another value after step 1, step 2, by stage: "
                    f"expected 0, 0, actual {changed[0]}, {changed[1]}"
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
        timeout=timedelta(seconds=60),
    )
    lines = run(rank)
    dist.barrier()
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
