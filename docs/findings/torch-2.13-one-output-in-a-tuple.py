"""Shape inference gives the loss function another type of output than the step does.

What: where the last stage returns a tuple of one tensor, shape inference calls the loss function with the bare
  tensor; where it returns a list of one, with the tensor, and where it returns a longer list, with a tuple. For
  microbatches it gets what the stage returned. A loss function that takes output[0] is given one sample instead of
  all: cross_entropy raises before the first microbatch. One that checks for a list raises, too. eval() is right, and
  so are declared shapes and 2.11, where the loss function is not called once more.
Where: torch 2.13.0, distributed/pipelining/stage.py, _backward_metadata_inference, line 2016 (fwd_outputs[0] if
  len(fwd_outputs) == 1); lists become tuples in _forward_metadata_inference, line 1949.
Why: outputs are made a tuple for shape inference, and what the module returned is not kept, as forward_one_chunk does
  (line 935).
Requirement: FWD-11.
Schedules: all, unless the last stage has input_args and output_args, as all others must have, too.
Possible fix: keep the module's own output beside the tuple, and give that to the loss function.
"""

import logging
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

M, SAMPLES, WIDTH, CLASSES = 2, 6, 4, 5
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B")


class Last(nn.Linear):
    returns = "tensor"

    def forward(self, x):
        out = super().forward(x)
        if self.returns == "tuple of one":
            return (out,)
        if self.returns == "list of one":
            return [out]
        if self.returns == "list of two":
            return [out, out * 2]
        return out


def describe(output):
    if isinstance(output, torch.Tensor):
        return f"a tensor of {len(output)} samples"
    return f"a {type(output).__name__} of {len(output)}"


def take_tensor(output):
    return output


def take_first(output):
    return output[0]


def take_first_of_list(output):
    if not isinstance(output, list):
        raise TypeError(f"a list expected, not a {type(output).__name__}")
    return output[0]


TAKES = {
    "tensor": take_tensor,
    "tuple of one": take_first,
    "list of one": take_first,
    "list of two": take_first_of_list,
}


def one_case(returns, name, how, declared):
    torch.manual_seed(0)
    module = Last(WIDTH, CLASSES)
    module.returns = returns
    x, y = torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,))
    given, right = [], []

    def loss(output, target, seen=given):
        seen.append(describe(output))
        return nn.functional.cross_entropy(TAKES[returns](output), target)

    for part, target in zip(x.chunk(M), y.chunk(M), strict=True):
        loss(module(part), target, right)
    examples = {}
    if declared:
        outs = tuple(torch.zeros(SAMPLES // M, CLASSES, requires_grad=True) for _ in range(2))
        examples["input_args"] = torch.zeros(SAMPLES // M, WIDTH)
        examples["output_args"] = outs if returns == "list of two" else outs[0]
    stage = PipelineStage(module, 0, 1, torch.device("cpu"), **examples)
    schedule = get_schedule_class(name)([stage] if name == "Interleaved1F1B" else stage, M, loss_fn=loss)
    try:
        getattr(schedule, how)(x, target=y)
        told = "returns"
    except Exception as error:
        told = f"raises {type(error).__name__}: {str(error)[:80]}"
    expected = sorted(set(right))
    others = sorted(set(given) - set(right))
    return f"expected {', '.join(expected)}; actual {'also ' + ', '.join(others) if others else 'the same'}; {told}"


def run():
    lines = []
    for returns in TAKES:
        lines.append(
            f"what the loss function is given where the last stage returns a {returns}; what the call does"
        )
        for name in SCHEDULES:
            for how, declared in (("step", False), ("step", True), ("eval", False)):
                words = f"{how}(), {'declared' if declared else 'inferred'} shapes"
                lines.append(f"  {name}, {words}: {one_case(returns, name, how, declared)}")
    return lines


def worker(folder):
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1, timeout=timedelta(seconds=60)
    )
    Path(folder, "0.txt").write_text("".join(f"{line}\n" for line in run()))
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
