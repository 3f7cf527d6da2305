"""Complex tensors between stages cannot be trained where shapes are inferred.

What: stages that hand complex tensors to each other (a Fourier layer, say) cannot be trained: the stage that receives
  one raises an error that mentions DTensors, and the stage before it raises "grad can be implicitly created only for
  scalar outputs" or loses its connection. eval() is right, and training is with declared shapes and up to 2.12.1.
Where: torch 2.13.0, distributed/pipelining/_utils.py, _TensorMeta.to_tensor, line 96; for DTensors line 207.
Why: in shape inference a stage's input is made with requires_grad only if it is_floating_point(), which is False for
  complex tensors, though these can need a gradient. The inferred gradient of the input is None (stage.py, line 2097),
  so that no gradient is sent for what, in the step, does need one.
Requirement: FWD-33.
Schedules: all, unless every stage has input_args and output_args.
Possible fix: t.is_floating_point() or t.is_complex(), in both lines and in those for traced stages (stage.py, lines
  1418, 1429 and 1520).
"""

import logging
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

WORLD, M, WIDTH = 2, 4, 3
CASES = (
    ("GPipe", "eval", "inferred", torch.complex64),
    ("GPipe", "step", "declared", torch.complex64),
    ("GPipe", "step", "inferred", torch.float32),
    ("GPipe", "step", "inferred", torch.complex64),
    ("InterleavedZeroBubble", "step", "inferred", torch.complex64),
)


def loss_function(output, target):
    return (output.abs() - target).square().mean()


def run(rank, name, how, shapes, dtype):
    """What the step does on this rank."""
    cls = get_schedule_class(name)
    several = issubclass(cls, PipelineScheduleMulti)
    n = 2 * WORLD if several else WORLD
    owned = list(range(rank, n, WORLD))
    torch.manual_seed(0)
    modules = [nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(n)]
    x, y = torch.randn(M, WIDTH, dtype=dtype), torch.randn(M, WIDTH)
    out = nn.Sequential(*modules)(x)
    loss_function(out, y).backward()
    right = {s: modules[s].weight.grad for s in owned}
    for module in modules:
        module.weight.grad = None

    def example(needs):
        return torch.zeros(1, WIDTH, dtype=dtype, requires_grad=needs)

    stages = []
    for s in owned:
        examples = (
            {"input_args": example(s > 0), "output_args": example(True)} if shapes == "declared" else {}
        )
        stages.append(PipelineStage(modules[s], s, n, torch.device("cpu"), **examples))
    schedule = cls(stages if several else stages[0], M, loss_fn=loss_function)
    args, target = (x,) if 0 in owned else (), {"target": y} if n - 1 in owned else {}
    try:
        found = getattr(schedule, how)(*args, **target)
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        if "gloo" in str(error):
            return "loses the connection to the other rank"
        return f"raises {type(error).__name__}: {str(error)[:80]}"
    if how == "eval":
        if found is None:
            return "returns"
        return f"returns {'right' if torch.allclose(found, out, atol=1e-5) else 'wrong'} outputs"
    wrong = []
    for s in owned:
        actual = modules[s].weight.grad
        if actual is None or not torch.allclose(actual, right[s], atol=1e-5):
            wrong.append(s)
    return f"returns with {f'wrong gradients in stages {wrong}' if wrong else 'right gradients'}"


def worker(rank, folder, case):
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    Path(folder, f"{rank}.part").write_text(run(rank, *case))
    Path(folder, f"{rank}.part").rename(Path(folder, f"{rank}.txt"))
    time.sleep(60)  # a rank that ends would break the connection on which another waits


def outcomes(case):
    """Per rank; a rank that has shown nothing 5 s after another one has ended waits for it."""
    with tempfile.TemporaryDirectory() as folder:
        make = mp.get_context("fork").Process  # torch is imported once
        processes = [make(target=worker, args=(rank, folder, case)) for rank in range(WORLD)]
        for process in processes:
            process.start()
        files = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
        started, ended = time.monotonic(), None
        while not all(file.exists() for file in files) and time.monotonic() - (ended or started + 25) < 5:
            if ended is None and any(file.exists() for file in files):
                ended = time.monotonic()
            time.sleep(0.1)
        found = [file.read_text() if file.exists() else "waits for the other rank" for file in files]
        for process in processes:
            process.kill()
            process.join()
    if ended is None and not any(found.startswith("r") for found in found):
        sys.exit("inconclusive: no rank gave a result")
    return found


def main():
    print("expected: right outputs, and right gradients on both ranks")
    for case in CASES:
        name, how, shapes, dtype = case
        for rank, found in enumerate(outcomes(case)):
            print(f"  {name}, {how}(), {shapes} shapes, {str(dtype).split('.')[1]}, rank {rank}: {found}")


if __name__ == "__main__":
    main()
