"""Pipelines add up the gradients of the microbatches that train_step averages; the loss that is reported is averaged.

What: with gradient_accumulation_steps = m, a step of train_step_pipeline_afab or train_step_pipeline_1f1b gives m times
  the gradients that train_step gives on one rank, with the same loss. Another pipeline size is another learning rate.
Where: picotron 0.1.0 (main branch of August 2025, 59714b1, which must be on PYTHONPATH),
  picotron/pipeline_parallel/pipeline_parallel.py, both train_step functions; train.py, train_step (line 49).
Why: train_step divides each loss by grad_acc_steps before its backward. The pipelines divide only the number that they
  return for logging. Adam hides it, since it does not depend on the scale of gradients; other optimizers, and clipping,
  do not.
Requirement: TRN-3, TRN-12, TRN-22, DPC-3.
Schedules: both.
Known: no thread about this engine is known; the same in others: https://github.com/deepspeedai/DeepSpeed/issues/7773,
  https://github.com/pytorch/torchtitan/issues/2972.
Possible fix: divide the loss by data_loader.grad_acc_steps on the last stage, before it is kept for the backward.

The engine synchronises a CUDA device after every message, which is left out here.
"""

import ast
import os
import tempfile
import warnings
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")

import picotron.process_group_manager as pgm
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from picotron.pipeline_parallel import pipeline_parallel as engine
from torch import nn

torch.cuda.synchronize = lambda: None
M, SAMPLES, LENGTH, WIDTH, CLASSES = 4, 2, 3, 8, 5


class Layer(nn.Linear):
    def forward(self, x, position_ids=None):
        return torch.tanh(super().forward(x))


class Pipeline(engine.PipelineParallel):
    """The engine's module around this model's parts; its constructor wants a Llama."""

    def __init__(self, parts, rank, size):
        nn.Module.__init__(self)
        first, last = rank == 0, rank == size - 1
        self.embedding = parts["embedding"] if first else nn.Identity()
        self.decoder_layers = nn.ModuleDict(
            {str(i): parts[str(i)] for i in range(2) if size == 1 or i == rank}
        )
        self.final_norm = nn.Identity()
        self.final_proj = parts["final_proj"] if last else nn.Identity()


class Loader:
    """The microbatches of one step."""

    grad_acc_steps = M

    def __init__(self):
        torch.manual_seed(1)
        self._left = iter(torch.randint(CLASSES, (M, 2, SAMPLES, LENGTH)))

    def __next__(self):
        inputs, targets = next(self._left)
        return {"input_ids": inputs, "target_ids": targets, "position_ids": torch.arange(LENGTH)}


def step_on_one_rank(model):
    """The train_step of the repository's train.py, whose other imports are not needed for it."""
    source = Path(pgm.__file__).parents[1] / "train.py"
    (node,) = (one for one in ast.parse(source.read_text()).body if getattr(one, "name", "") == "train_step")
    names = {"torch": torch, "F": nn.functional, "pgm": pgm}
    exec(compile(ast.Module([node], []), source, "exec"), names)

    def called(input_ids):
        return model(input_ids, None, None)

    return names["train_step"](called, Loader(), torch.device("cpu"))


def worker(rank, folder, size, name):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    pgm.setup_process_group_manager(tp_size=1, cp_size=1, pp_size=size, dp_size=1)
    torch.manual_seed(0)
    parts = {
        "embedding": nn.Embedding(CLASSES, WIDTH),
        "0": Layer(WIDTH, WIDTH),
        "1": Layer(WIDTH, WIDTH),
        "final_proj": nn.Linear(WIDTH, CLASSES),
    }
    model = Pipeline(parts, rank, size)
    if size == 1:
        loss = step_on_one_rank(model)
    else:
        step = getattr(engine, name)
        loss = step(model, Loader(), (SAMPLES, LENGTH, WIDTH), torch.device("cpu"), torch.float32)
    norms = {n: float(p.grad.norm()) for n, p in model.named_parameters() if n.endswith("weight")}
    lines = [f"{n}|{norm:.5f}" for n, norm in norms.items()]
    lines += [f"loss|{float(loss):.5f}"] if rank == size - 1 else []
    Path(folder, f"{rank}.txt").write_text("\n".join(lines))
    dist.destroy_process_group()


def shown(size, name):
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder, size, name), nprocs=size)
        lines = [line for r in range(size) for line in Path(folder, f"{r}.txt").read_text().splitlines()]
    return {name: float(value) for name, value in (line.split("|") for line in lines)}


def main():
    expected = shown(1, "train_step")
    for name in ("train_step_pipeline_afab", "train_step_pipeline_1f1b"):
        print(f"{name}, 2 ranks, {M} microbatches, against train_step on one")
        for what, value in shown(2, name).items():
            label = what if what == "loss" else f"norm of the gradient of {what}"
            print(
                f"  {label}: {value:.4f}, expected {expected[what]:.4f}, {value / expected[what]:.3f} times it"
            )


if __name__ == "__main__":
    main()
