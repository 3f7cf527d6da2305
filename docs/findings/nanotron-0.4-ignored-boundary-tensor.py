"""A tensor that one rank hands on and the next one does not use leaves the first rank waiting for ever.

What: stage 0 hands on two tensors with gradients, stage 1 is given both and uses one. No gradient is sent for
  the other, and stage 0 waits for one. Before that it takes the gradient of the next microbatch for the
  missing one: where shapes differ, this is an error; where they are the same, the gradients that it has by
  then are wrong.
Where: nanotron, main branch of April 2026 (2411b022), which calls itself 0.4 and must be on PYTHONPATH (the
  wheel 0.4 cannot be imported). parallel/pipeline_parallel/functional.py,
  RecvTensorFromPipelineBuffer.backward, line 109 (sends), and SendTensorToPipelineBuffer.backward, lines 38
  to 42 (waits).
Why: a gradient is sent by the backward of the received tensor, which does not run for a tensor that the loss
  does not depend on. The sender waits for a gradient of every tensor with one that it sent, and messages are
  known by their order alone.
Requirement: FWD-12.
Schedules: AllForwardAllBackwardPipelineEngine and OneForwardOneBackwardPipelineEngine.
Possible fix: in recv_from_pipeline_state_buffer, let every microbatch also go backward from the received
  tensor, with zeros: `pipeline_state.register_activation_requiring_backward((received * 0).sum())` where it
  requires a gradient. With this, the script shows what is expected.
"""

import os
import sys
import tempfile
import time
import warnings
from datetime import timedelta
from pathlib import Path

os.environ.update(GLOO_SOCKET_IFNAME="lo")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from nanotron.parallel.pipeline_parallel import engine as engines
from nanotron.parallel.pipeline_parallel.block import PipelineBlock
from nanotron.parallel.pipeline_parallel.p2p import P2P
from nanotron.parallel.pipeline_parallel.tensor_pointer import TensorPointer
from torch import nn

WORLD, M = 2, 2  # ranks (and stages), microbatches
PATIENCE = 15  # seconds; a step takes a few milliseconds
ENGINES = ("AllForwardAllBackwardPipelineEngine", "OneForwardOneBackwardPipelineEngine")
CASES = {  # whether stage 1 uses the second tensor, whether it has the shape of the first
    "both tensors are used": (True, True),
    "one tensor is not used": (False, True),
    "one tensor is not used, and has another shape": (False, False),
}


class First(nn.Linear):
    same_shape = True

    def forward(self, input):
        output = super().forward(input)
        return {"output": output, "beside": output * 2 if self.same_shape else output.sum(-1)}


class Last(nn.Linear):
    used = True

    def forward(self, output, beside, target):
        output = super().forward(output + beside if self.used else output)
        return {"loss": nn.functional.mse_loss(output, target)}


class Model(nn.Module):
    def __init__(self, stages, group):
        super().__init__()
        p2p = P2P(group, device=torch.device("cpu"))
        self.first = PipelineBlock(p2p, lambda: stages[0], {}, {"input"}, {"output", "beside"})
        self.last = PipelineBlock(p2p, lambda: stages[1], {}, {"output", "beside", "target"}, {"loss"})
        self.first.build_and_set_rank(0)
        self.last.build_and_set_rank(1)

    def forward(self, x, y):
        return self.last(**self.first(input=x), target=y)["loss"]


def run(rank, name, used, same_shape):
    torch.manual_seed(1)
    stages = First(3, 3, dtype=torch.float64), Last(3, 3, dtype=torch.float64)
    stages[0].same_shape, stages[1].used = same_shape, used
    own = stages[rank].weight
    xs, ys = torch.randn(2, M, 2, 3, dtype=torch.float64)
    for x, y in zip(xs, ys, strict=True):
        (stages[1](**stages[0](x), target=y)["loss"] / M).backward()
    expected, own.grad = round(float(own.grad.norm()), 4), None
    batch = [
        {"x": TensorPointer(0) if rank else x, "y": y if rank else TensorPointer(1)}
        for x, y in zip(xs, ys, strict=True)
    ]
    try:
        getattr(engines, name)().train_batch_iter(
            Model(stages, dist.group.WORLD), dist.group.WORLD, batch, M, None
        )
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return f"the step ends, gradient: expected {expected}, actual {float(own.grad.norm()):.4f}"


def worker(rank, folder, name, case):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=120),
    )
    Path(folder, f"{rank}.part").write_text(run(rank, name, *case))
    Path(folder, f"{rank}.part").rename(Path(folder, f"{rank}.txt"))
    time.sleep(120)  # a rank that ends would break the connection on which another waits


def outcomes(name, case):
    """What each rank says; one that has said nothing 15 s after the start, or after the other one, waits."""
    with tempfile.TemporaryDirectory() as folder:
        make = mp.get_context("fork").Process  # nanotron is imported once
        processes = [make(target=worker, args=(rank, folder, name, case)) for rank in range(WORLD)]
        for process in processes:
            process.start()
        files = [Path(folder, f"{rank}.txt") for rank in range(WORLD)]
        ended, since = 0, time.monotonic()
        while ended < WORLD and time.monotonic() - since < PATIENCE:
            now = sum(file.exists() for file in files)
            if now != ended:
                ended, since = now, time.monotonic()
            time.sleep(0.1)
        found = [file.read_text() if file.exists() else "waits for the other rank" for file in files]
        waits = [
            not file.exists() and process.is_alive() for file, process in zip(files, processes, strict=True)
        ]
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
    if ended < WORLD and (all(waits) or sum(waits) != WORLD - ended):
        sys.exit("inconclusive: a rank gave no result")
    return found


def main():
    for words, case in CASES.items():
        print(words)
        for name in ENGINES:
            for rank, text in enumerate(outcomes(name, case)):
                print(f"  {name}, rank {rank}: {text}")


if __name__ == "__main__":
    main()
