"""Every evaluation raises an AssertionError; the training step after it may be wrong, raise, or never end.

What: validate_batch_iter() raises an AssertionError without a message at the first microbatch, on the rank
  that has the loss. If the caller catches it and goes on to train: on one rank 1F1B leaves out the step's
  last microbatch and raises another AssertionError. On two ranks an activation of the evaluation is taken for
  one of the step; under 1F1B both ranks then raise, with wrong gradients or none, and under the other engine
  both wait for each other (with gloo).
Where: nanotron, main branch of April 2026 (2411b022), which calls itself 0.4 and must be on PYTHONPATH (the
  wheel 0.4 cannot be imported). parallel/pipeline_parallel/engine.py, validate_batch_iter, lines 133, 141 and
  150, and forward, line 59. DistributedTrainer.validation_step (trainer.py, line 734) calls
  validate_batch_iter; DistributedTrainer.train does not evaluate.
Why: validate_batch_iter runs under torch.inference_mode(), where no loss requires a gradient, and calls
  forward(), which asserts that the loss requires one. It uses PipelineTrainBatchState, whose deques are
  attributes of the class: each microbatch of the evaluation leaves an entry there, which the next step takes
  for its own (line 316 asserts that there is none). The rank before the one that raises goes on to send its
  other microbatches.
Requirement: SCH-9.
Schedules: AllForwardAllBackwardPipelineEngine and OneForwardOneBackwardPipelineEngine.
Known: near https://github.com/huggingface/nanotron/pull/244 (closed), "Take out some checks that seem wrong".
Possible fix: assert and register the loss only where torch.is_grad_enabled(), and evaluate with
  PipelineEvalBatchState (which lacks nb_forwards). With both, this script shows what is expected.
"""

import os
import sys
import tempfile
import time
import traceback
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

M = 2  # microbatches
PATIENCE = 15  # seconds; a step takes a few milliseconds
ENGINES = ("AllForwardAllBackwardPipelineEngine", "OneForwardOneBackwardPipelineEngine")


class Model(nn.Module):
    def __init__(self, stages, group):
        super().__init__()
        p2p, last = P2P(group, device=torch.device("cpu")), group.size() - 1

        def block(module, rank, inputs, output):
            made = PipelineBlock(p2p, lambda: module, {}, inputs, {output})
            made.build_and_set_rank(rank)
            return made

        self.first = block(stages[0], 0, {"input"}, "hidden")
        self.second = block(stages[1], last, {"input"}, "output")
        self.loss = block(nn.functional.mse_loss, last, {"input", "target"}, "loss")

    def forward(self, x, y):
        output = self.second(input=self.first(input=x)["hidden"])["output"]
        return self.loss(input=output, target=y)["loss"]


def run(rank, world, name, say):
    torch.manual_seed(1)
    stages = [nn.Linear(3, 3, dtype=torch.float64) for _ in range(2)]
    own = [stage for index, stage in enumerate(stages) if min(index, world - 1) == rank]
    model = Model(stages, dist.group.WORLD)
    xs, ys, other_xs, other_ys = torch.randn(4, M, 2, 3, dtype=torch.float64)

    def gradient():
        found = [stage.weight.grad for stage in own if stage.weight.grad is not None]
        return round(float(torch.cat(found).norm()), 4) if found else None

    def alone(pairs):
        """The gradient and the loss without a pipeline."""
        loss = sum(nn.functional.mse_loss(stages[1](stages[0](x)), y) for x, y in pairs) / M
        loss.backward()
        found = gradient()
        for stage in stages:
            stage.zero_grad()
        return found, round(float(loss), 4)

    expected, _ = alone(zip(xs, ys, strict=True))
    _, expected_loss = alone(zip(other_xs, other_ys, strict=True))
    meanings = {  # what a wrong gradient is
        alone([(xs[0], ys[0])])[0]: " (that of microbatch 0 alone)",
        alone([(other_xs[1], ys[0])])[
            0
        ]: " (that of the evaluation's last input with the step's first target)",
    }

    def call(method, xs, ys, *before, after=()):
        """What the method of a new engine returns or raises, in words."""
        first, last = rank == 0, rank == world - 1
        batch = [
            {"x": x if first else TensorPointer(0), "y": y if last else TensorPointer(world - 1)}
            for x, y in zip(xs, ys, strict=True)
        ]
        try:
            found = getattr(getattr(engines, name)(), method)(model, *before, batch, M, *after)
        except AssertionError as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            return f"AssertionError {str(error)!r} in {at.name}, line {at.lineno}"
        return f"loss {sum(float(one['loss']) for one in found):.4f}" if last else "no error"

    def train(words):
        told = call("train_batch_iter", xs, ys, dist.group.WORLD, after=(None,))
        told = f", {told}" if told.startswith("AssertionError") else ""
        actual = gradient()
        model.zero_grad()
        say(f"{words}: expected gradient {expected}, actual {actual}{meanings.get(actual, '')}{told}")

    train("training")
    wanted = f"loss {expected_loss}" if rank == world - 1 else "no error"
    say(f"evaluation: expected {wanted}, actual {call('validate_batch_iter', other_xs, other_ys)}")
    train("training after it")


def worker(rank, world, name, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=120),
    )

    def say(text):
        with Path(folder, f"{rank}.txt").open("a") as file:
            file.write(f"{text}\n")

    run(rank, world, name, say)
    time.sleep(120)  # a rank that ends would break the connection on which another waits


def outcomes(world, name):
    """Three lines per rank; one that lacks its last line 15 s after any rank has written one waits."""
    with tempfile.TemporaryDirectory() as folder:
        make = mp.get_context("fork").Process  # nanotron is imported once
        processes = [make(target=worker, args=(rank, world, name, folder)) for rank in range(world)]
        for process in processes:
            process.start()
        files = [Path(folder, f"{rank}.txt") for rank in range(world)]
        found, changed = None, time.monotonic()
        while time.monotonic() - changed < PATIENCE and not (found and all(len(x) == 3 for x in found)):
            now = [file.read_text().splitlines() if file.exists() else [] for file in files]
            if now != found:
                found, changed = now, time.monotonic()
            time.sleep(0.1)
        if not all(process.is_alive() for process in processes):
            sys.exit(f"inconclusive: exit codes {[process.exitcode for process in processes]}")
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
    return found


def main():
    for name in ENGINES:
        for world in (1, 2):
            print(f"{name}, {world} rank{'s' * (world > 1)}")
            for rank, lines in enumerate(outcomes(world, name)):
                if len(lines) < 2:
                    sys.exit(f"inconclusive: rank {rank} did not come to the end of the evaluation")
                for line in [*lines, "training after it: waits for the other rank"][:3]:
                    print(f"  rank {rank}, {line}")


if __name__ == "__main__":
    main()
