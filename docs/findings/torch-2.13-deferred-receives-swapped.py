"""With defer_pp_recv=True a stage is given the message that is meant for another stage.

What: a training step with the documented option defer_pp_recv=True gives wrong outputs, losses and gradients, without
  an error where all messages have one size (where they have not, the process is aborted). The values of one stage's
  forward arrive as another stage's gradient, and the other way round.
Where: torch 2.13.0, distributed/pipelining/schedules.py, _defer_recv_ops, lines 1525 to 1615.
Why: messages between two ranks have no tags, so they are matched in order: the n-th receive gets the n-th send. A
  receive is moved to the computation that needs it, the sends stay where they are. If two messages of one rank to
  another are needed in another order than they are sent in, the receives are swapped: in InterleavedZeroBubble with
  p = v = 2 and m = 3 rank 0 sends F of stage 2 before the gradient of stage 1, and rank 1 wants the gradient first.
Requirement: SCH-12.
Schedules: with defer_pp_recv=True (not the default): InterleavedZeroBubble (p = 2, v >= 2, m >= 3), ZBVZeroBubble
  (p = 2: m >= 3; p = 3: m >= 4), DualPipeV (p >= 3); by their tables not Interleaved1F1B and LoopedBFS (p <= 4).
Possible fix: move a receive no further than the next receive from the same rank, so that their order stays that of
  the sends; or refuse the option where it changes that order.
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
from torch.distributed.pipelining.schedules import get_schedule_class

WORLD = 2
STAGES = 4
M = 4
SCHEDULES = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble")


def model():
    torch.manual_seed(0)
    return [nn.Linear(3, 3, dtype=torch.float64) for _ in range(STAGES)]


def batch():
    torch.manual_seed(1)
    return torch.randn(M, 3, dtype=torch.float64), torch.randn(M, 3, dtype=torch.float64)


def expected():
    """The mean loss over microbatches, and the gradient of every stage's weight, of the model in one piece."""
    modules, (x, y) = model(), batch()
    loss = nn.functional.mse_loss(nn.Sequential(*modules)(x), y)
    loss.backward()
    return {"loss": loss.detach(), **{s: module.weight.grad for s, module in enumerate(modules)}}


def trained(name, rank, *, deferred):
    """The same of torch's schedule, as far as this rank has it."""
    modules, (x, y) = model(), batch()
    owned = [rank, STAGES - 1 - rank] if name == "ZBVZeroBubble" else [rank, rank + WORLD]
    stages = [PipelineStage(modules[s], s, STAGES, torch.device("cpu")) for s in owned]
    cls = get_schedule_class(name)
    schedule = cls(stages, M, loss_fn=nn.functional.mse_loss, defer_pp_recv=deferred)
    losses = []
    args = (x,) if 0 in owned else ()
    last = {"target": y, "losses": losses} if STAGES - 1 in owned else {}
    schedule.step(*args, **last)
    found = {s: modules[s].weight.grad for s in owned}
    return {"loss": torch.stack(losses).mean().detach(), **found} if losses else found


def run(rank):
    lines = []
    for name in SCHEDULES:
        for deferred in (False, True):
            parts = [None] * WORLD
            dist.all_gather_object(parts, trained(name, rank, deferred=deferred))
            found = {key: value for part in parts for key, value in part.items()}
            right = expected()
            wrong = [key for key in right if not torch.allclose(found[key], right[key])]
            told = ", ".join(key if key == "loss" else f"gradient of stage {key}" for key in wrong)
            lines.append(
                f"{name}, defer_pp_recv={deferred}: loss {right['loss']:.4f} expected, {found['loss']:.4f} "
                f"actual; wrong: {told or 'nothing'}"
            )
    return lines if rank == 0 else []


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
