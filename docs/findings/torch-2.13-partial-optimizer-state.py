"""A training in which a parameter has had no gradient yet cannot be resumed with torch.distributed.checkpoint.

What: a layer that no microbatch has used so far (an expert, a head of another task) has no state in the optimizer. A
  checkpoint that is made then, with get_state_dict and save, cannot be loaded into the same stages: load raises
  "Missing key in checkpoint state_dict: optimizer.state.….momentum_buffer". If every parameter has had a gradient, or
  with a planner that allows a partial load, training goes on as if nothing had happened.
Where: torch 2.13.0, distributed/checkpoint/state_dict.py, _init_optim_state.
Why: states that do not exist are made, so that there is a place for what is loaded, only if the optimizer has none at
  all. The optimizer that saves has some and gets no more; the one that loads is new and gets all of them.
Requirement: LIF-10.
Schedules: all.
Known: https://github.com/pytorch/pytorch/issues/192202 (open; its first case), mended for its users by
  https://github.com/pytorch/torchtitan/pull/4474; https://github.com/NVIDIA-NeMo/Automodel/pull/2071.
Possible fix: https://github.com/pytorch/pytorch/pull/192307 makes states parameter by parameter.
"""

import logging
import os
import tempfile
import warnings

os.environ.update(GLOO_SOCKET_IFNAME="lo")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WORLD, M, WIDTH = 2, 2, 3


class Stage(nn.Module):
    """A linear map, and another that may be left out."""

    def __init__(self, *, uses_both):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.uses_both = uses_both

    def forward(self, x):
        x = torch.tanh(self.first(x))
        return self.second(x) if self.uses_both else x


class Training:
    """A stage of this rank, an optimizer and a schedule, made anew."""

    def __init__(self, rank, *, uses_both, seed):
        torch.manual_seed(seed)
        stages = [Stage(uses_both=uses_both or s == 0) for s in range(WORLD)]
        self.rank, self.whole = rank, nn.ModuleDict({str(rank): stages[rank]})
        self.optimizer = torch.optim.SGD(self.whole.parameters(), lr=0.1, momentum=0.5)
        stage = PipelineStage(stages[rank], rank, WORLD, torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, M, loss_fn=nn.functional.mse_loss)

    def step(self):
        torch.manual_seed(1)
        x, y = torch.randn(2 * M, WIDTH), torch.randn(2 * M, WIDTH)
        self.schedule.step(*((x,) if self.rank == 0 else ()), **({} if self.rank == 0 else {"target": y}))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        model, optimizer = get_state_dict(self.whole, self.optimizer, options=OPTIONS)
        return {"model": model, "optimizer": optimizer}

    def take(self, state):
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(
            self.whole, self.optimizer, model_state_dict=model, optim_state_dict=optimizer, options=OPTIONS
        )


OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)


def resumed(rank, folder, *, uses_both, planner):
    """What becomes of a training that is saved after a step, loaded elsewhere, and goes on for another."""
    without = Training(rank, uses_both=uses_both, seed=0)
    without.step()
    save(without.state(), checkpoint_id=folder)
    without.step()
    other = Training(rank, uses_both=uses_both, seed=2)
    try:
        state = other.state()
        load(state, checkpoint_id=folder, planner=planner)
        other.take(state)
    except BaseException as error:  # CheckpointException is not an Exception
        # the last line that says what happened
        said = [line.strip() for line in str(error).splitlines() if "Error: " in line] or [
            f"{type(error).__name__}: {error}"
        ]
        return f"raises {said[-1]}"
    other.step()
    pairs = zip(without.whole.parameters(), other.whole.parameters(), strict=True)
    return "goes on as if without interruption" if all(a.equal(b) for a, b in pairs) else "goes on otherwise"


def worker(rank, folder):
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    for words, uses_both, planner in (
        ("every parameter has had a gradient", True, None),
        ("the last stage's second layer has had none", False, None),
        ("the same, and a partial load is allowed", False, DefaultLoadPlanner(allow_partial_load=True)),
    ):
        found = [None] * WORLD
        mine = resumed(rank, f"{folder}/{words}", uses_both=uses_both, planner=planner)
        dist.all_gather_object(found, mine)
        if rank == 0:
            print(words)
            for r, one in enumerate(found):
                print(f"  rank {r} {one}")
    dist.destroy_process_group()


def main():
    print("expected: goes on as if without interruption")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(folder,), nprocs=WORLD)


if __name__ == "__main__":
    main()
