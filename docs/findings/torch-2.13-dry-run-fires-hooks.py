"""A model's hooks run once more than there are microbatches.

What: in the first step, and in the first step after every change between step() and eval(), each stage's
  module is called once more than there are microbatches; its forward hooks fire, and on every stage whose
  input needs a gradient its tensor hooks fire too.
Where: torch 2.13.0, distributed/pipelining/stage.py, PipelineStage._forward_metadata_inference (line 1944
  calls the module) and _backward_metadata_inference (line 1976 on, through _compute_input_grads); the
  repetition comes from schedules.py, _PipelineSchedule._initialize_pp_stages (line 420).
Why: without input_args and output_args a stage learns its shapes by running the real module on real memory.
  The random state is forked for the dry run and FSDP is cleaned up after it, so it is meant to leave no
  trace; hooks and buffers were not thought of.
Requirement: FWD-25.
Schedules: all; not when every stage is given input_args and output_args (last line).
Possible fix: infer under FakeTensorMode with functional_call on copied buffers and hooks disabled, or
  document that the module is really run.
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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

WORLD = 2
M = 4


def run(rank):
    lines = []
    for static in (False, True):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        counts = {"forward": 0, "tensor": 0}

        def count_forward(module, args, output, counts=counts):
            counts["forward"] += 1
            if output.requires_grad:
                output.register_hook(lambda grad: counts.__setitem__("tensor", counts["tensor"] + 1))

        example = {"input_args": torch.empty(2, 3), "output_args": torch.empty(2, 3)} if static else {}
        if static and rank == 1:
            example["input_args"].requires_grad_()
        if static:
            example["output_args"].requires_grad_()
        module.register_forward_hook(count_forward)
        stage = PipelineStage(module, rank, WORLD, torch.device("cpu"), **example)
        schedule = Schedule1F1B(stage, M, loss_fn=nn.functional.mse_loss)
        x = torch.randn(2 * M, 3)
        seen = []
        for mode in ("step", "step", "eval", "step"):
            counts.update(forward=0, tensor=0)
            getattr(schedule, mode)(*(() if rank else (x,)), **({"target": x} if rank else {}))
            expected_tensor = 0 if mode == "eval" else M
            seen.append(f"{mode} {counts['forward']}/{M} {counts['tensor']}/{expected_tensor}")
        kind = "with input_args and output_args" if static else "shapes inferred"
        lines.append(f"stage {rank}, {kind}: actual/expected forward and tensor hooks: {'; '.join(seen)}")
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
