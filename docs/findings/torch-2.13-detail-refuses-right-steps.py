"""TORCH_DISTRIBUTED_DEBUG=DETAIL ends steps that are right.

What: with DETAIL each stage's inputs, outputs and gradients are compared with what shape inference saw. It also
  refuses (a) a received tensor that needs a gradient and that the stage does not use, or of which it uses what has no
  gradient (a comparison, a detached copy), traced stages included: "expected metadata, got None"; (b) a batch whose
  memory is laid out otherwise than the first one's, such as a slice of a wider tensor: "stride mismatch"; (c)
  DTensors between stages that are slices, as with microbatches of one sample whose sequence is cut: their strides are
  not those of a new tensor, although they are contiguous. The rank raises alone, and the others wait. Without DETAIL
  the same steps give right gradients. Who switches it on to look for an error finds this one instead, which is none.
Where: torch 2.13.0, distributed/pipelining/stage.py, backward_one_chunk, line 1045 (a), forward_one_chunk, line 884
  (b), (c); _utils.py, validate_tensors_metadata and _TensorMeta.get_diff.
Why: (a) a gradient that is None is sent back as zeros, which get_bwd_send_ops (line 589) makes; the comparison comes
  before that, and finds None where there should be a tensor. (b) The first stage's arguments are not received into a
  buffer, so that they need not have the same strides each time. (c) A DTensor's strides are those of what is sent,
  but `from_local`, by which the receiver makes it, gives dimensions of size 1 those of a new tensor.
Requirement: FWD-19 for (c), at profile full; none for the others (near FWD-12 and FWD-16).
Schedules: all; (a) all that train.
Known: no thread about this is known; the zeros of (a) are of https://github.com/pytorch/pytorch/pull/182182.
Possible fix: (a) accept None where a gradient is expected; (b), (c) do not compare the strides of inputs.
"""

import inspect
import logging
import os
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
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import DTensor, Shard

WORLD, M, WIDTH, STEPS = 2, 4, 3, 2
WAITS = "waits for the other rank"
SCHEDULES = (
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)
KINDS = {
    "every tensor is used, every batch has the same strides": SCHEDULES,
    "stages hand on a tensor that the next one does not use": SCHEDULES,
    "the second batch is a slice of a wider tensor": ("GPipe", "Interleaved1F1B"),
    "stages hand on DTensors that have all of their memory": ("GPipe", "Interleaved1F1B"),
    "stages hand on DTensors that are slices of a longer one": ("GPipe", "Interleaved1F1B"),
}


class Stage(nn.Module):
    def __init__(self, last, kind):
        super().__init__()
        self.linear, self.last, self.kind = nn.Linear(WIDTH, WIDTH), last, kind
        self.mesh = DeviceMesh("cpu", [dist.get_rank()]) if "DTensors" in kind else None

    def forward(self, x, beside=None):
        if "does not use" not in self.kind and beside is not None:
            x = x + beside
        if isinstance(x, DTensor):
            x = x.to_local()
        y = torch.tanh(self.linear(x))
        if self.last:
            return y
        if self.mesh is None:
            return y, 2 * y
        if "slices" not in self.kind:
            return DTensor.from_local(y, self.mesh, [Shard(0)])
        return DTensor.from_local(torch.cat([y, y], dim=1), self.mesh, [Shard(0)])[:, :WIDTH]


def whole(modules, x):
    """The modules one after the other, without a pipeline."""
    given = (x,)
    for module in modules[:-1]:
        given = module(*given)
        given = given if isinstance(given, tuple) else (given,)
    return modules[-1](*given)


def run(rank, name, kind):
    """What two steps do on this rank."""
    cls = get_schedule_class(name)
    several, v_shaped = issubclass(cls, PipelineScheduleMulti), name in ("ZBVZeroBubble", "DualPipeV")
    n = 2 * WORLD if several else WORLD
    owned = [rank, n - 1 - rank] if v_shaped else list(range(rank, n, WORLD))
    torch.manual_seed(0)
    modules = [Stage(s == n - 1, kind) for s in range(n)]
    made = {"get_mesh": lambda names, layout: modules[0].mesh} if "DTensors" in kind else {}
    if made and "get_mesh" not in inspect.signature(PipelineStage).parameters:
        return "does not take a mesh: DTensors cannot pass"
    stages = [PipelineStage(modules[s], s, n, torch.device("cpu"), **made) for s in owned]
    schedule = cls(stages if several else stages[0], M, loss_fn=nn.functional.mse_loss)
    for step in range(STEPS):
        rows = M if "DTensors" in kind else 2 * M
        wide, y = torch.randn(rows, WIDTH + 2), torch.randn(rows, WIDTH)
        x = wide[:, :WIDTH]
        if step == 0 or "wider" not in kind:
            x = x.contiguous()
        nn.functional.mse_loss(whole(modules, x), y).backward()
        right = {s: modules[s].linear.weight.grad for s in owned}
        for module in modules:
            module.zero_grad()
        args, target = (x,) if 0 in owned else (), {"target": y} if n - 1 in owned else {}
        try:
            schedule.step(*args, **target)
        except Exception as error:
            while error.__cause__ is not None:
                error = error.__cause__
            if "gloo" in str(error):
                return f"loses the connection to the other rank in step {step + 1}"
            return f"raises in step {step + 1}: {type(error).__name__}: {str(error).strip()[:90]}"
        wrong = []
        for s in owned:
            actual = modules[s].linear.weight.grad
            if actual is None or not torch.allclose(actual, right[s], atol=1e-5):
                wrong.append(s)
        if wrong:
            return f"returns with wrong gradients in stages {wrong} in step {step + 1}"
        for module in modules:
            module.zero_grad()
    return "returns with right gradients"


def worker(rank, folder, case):
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = case[0]
    dist.set_debug_level_from_env()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    Path(folder, f"{rank}.part").write_text(run(rank, *case[1:]))
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
        found = [file.read_text() if file.exists() else WAITS for file in files]
        for process in processes:
            process.kill()
            process.join()
    if WAITS in found and not any("raises" in text for text in found):
        sys.exit("inconclusive: a rank gave no result")
    return found


def main():
    print(
        f"expected with TORCH_DISTRIBUTED_DEBUG=OFF and =DETAIL: right gradients on both ranks in {STEPS} steps"
    )
    for kind, names in KINDS.items():
        print(kind)
        for level in ("OFF", "DETAIL"):
            for name in names:
                for rank, found in enumerate(outcomes((level, name, kind))):
                    print(f"  {level}, {name}, rank {rank}: {found}")


if __name__ == "__main__":
    main()
