"""A tensor that every microbatch is given whole loses its gradient.

What: a leaf tensor that requires a gradient (a learned prompt, say) and is passed to step() with _Replicate in
  args_chunk_spec or kwargs_chunk_spec, so that every microbatch gets all of it, ends with .grad None. A gradient that
  it had before the step is lost, too. If the tensor is a parameter of another stage on the same rank (an embedding
  whose weight the output layer uses), that stage's own gradient is lost with it: the embedding is not trained at all.
  Nothing is raised.
Where: torch 2.13.0, distributed/pipelining/_backward.py, stage_backward, line 450 (val.grad = None).
Why: after a microbatch's backward the .grad of every input is taken and set to None, which suits activations that
  were received. _Replicate (microbatch.py, line 357) hands the user's own tensor to every microbatch, not a view of
  it.
Requirement: none (TRN-7 judges it where Feature.WHOLE_TENSORS is claimed).
Schedules: all; where InterleavedZeroBubble and ZBVZeroBubble split the backward, that is, on ranks without the first
  stage, the gradient is right.
Possible fix: set .grad to None only for what was received; or give every microbatch a view (v.view_as(v)) for which
  retain_grad() was called, as _split_tensor does, so that the gradient also reaches the leaf.
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
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate
from torch.distributed.pipelining.schedules import get_schedule_class

M, SAMPLES, WIDTH, WORDS = 4, 8, 3, 5
SCHEDULES = ("GPipe", "1F1B")
SEVERAL = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble")


class Prompted(nn.Linear):
    def forward(self, x, prompt):
        return super().forward(x + prompt)


class Embedding(nn.Embedding):
    def forward(self, words, table=None):
        return super().forward(words)


class Output(nn.Linear):
    """The scores of all words; table is the embedding's weight."""

    def forward(self, x, table=None):
        return super().forward(x) @ table.t()


def size(gradient):
    return None if gradient is None else round(float(gradient.abs().sum()), 3)


def prompts():
    """One stage; a prompt that is given whole to every microbatch."""
    lines = ["sum of the magnitudes of a prompt's gradient; it is given to one stage, for every microbatch"]
    for name in SCHEDULES:
        for words in ("as an argument", "as a keyword argument", "as an argument, with a gradient before"):
            found = []
            for pipeline in (False, True):
                torch.manual_seed(0)
                module, prompt = Prompted(WIDTH, WIDTH), nn.Parameter(torch.randn(1, WIDTH))
                x, y = torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH)
                if words.endswith("before"):
                    prompt.grad = torch.full((1, WIDTH), 10.0)
                if not pipeline:
                    nn.functional.mse_loss(module(x, prompt), y).mul(
                        M
                    ).backward()  # the sum over M microbatches
                else:
                    stage = PipelineStage(module, 0, 1, torch.device("cpu"))
                    options = {"loss_fn": nn.functional.mse_loss, "scale_grads": False}
                    if words.startswith("as an argument"):
                        spec = (TensorChunkSpec(0), _Replicate())
                        get_schedule_class(name)(stage, M, args_chunk_spec=spec, **options).step(
                            x, prompt, target=y
                        )
                    else:
                        spec = {"prompt": _Replicate()}
                        schedule = get_schedule_class(name)(stage, M, kwargs_chunk_spec=spec, **options)
                        schedule.step(x, prompt=prompt, target=y)
                found.append(size(prompt.grad))
            lines.append(f"  {name}, {words}: expected {found[0]}, actual {found[1]}")
    return lines


def tables():
    """Two stages on one rank; the second is given the first one's parameter."""
    lines = ["the same of an embedding, whose weight the last of two stages on the same rank is given"]
    for name in SEVERAL:
        found, told = [], None
        for pipeline in (False, True):
            torch.manual_seed(0)
            modules = Embedding(WORDS, WIDTH), Output(WIDTH, WIDTH)
            x, y = torch.randint(WORDS, (SAMPLES,)), torch.randint(WORDS, (SAMPLES,))
            if not pipeline:
                out = modules[1](modules[0](x), modules[0].weight)
                nn.functional.cross_entropy(out, y).mul(M).backward()
            else:
                stages = [
                    PipelineStage(module, s, 2, torch.device("cpu")) for s, module in enumerate(modules)
                ]
                options = {"loss_fn": nn.functional.cross_entropy, "scale_grads": False}
                schedule = get_schedule_class(name)(stages, M, **options)
                schedule._kwargs_chunk_spec = {
                    "table": _Replicate()
                }  # LoopedBFS does not take it as an argument
                try:
                    schedule.step(x, table=modules[0].weight, target=y)
                except Exception as error:  # other releases cannot run all of these schedules on one rank
                    told = f"raises {type(error).__name__}: {str(error).strip()[:60]}"
            found.append([size(module.weight.grad) for module in modules])
        lines.append(f"  {name}: expected {found[0][0]}, {told or f'actual {found[1][0]}'}")
        if told is None:
            lines.append(f"  {name}, weight of the last stage: expected {found[0][1]}, actual {found[1][1]}")
    return lines


def worker(folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1, timeout=timedelta(seconds=60)
    )
    Path(folder, "0.txt").write_text("".join(f"{line}\n" for line in prompts() + tables()))
    os._exit(0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        process = mp.get_context("spawn").Process(target=worker, args=(folder,))
        process.start()
        process.join(timeout=60)
        process.kill()
        path = Path(folder, "0.txt")
        if not path.exists():
            sys.exit(f"inconclusive: a rank gave no result ({path.name})")
        print(path.read_text(), end="")


if __name__ == "__main__":
    main()
