"""The dry run gives later stages uninitialised memory for indices, which is an error on one rank before the first step.

What: a stage that is given token ids, positions, routes or classes by the stage before and looks something up with them
  raises "index out of range" in the first step or evaluation, although all indices are right; the other ranks wait.
  Whether it does is chance, since it depends on what lay in that memory; the script, and every user who calls
  torch.use_deterministic_algorithms(True), has torch fill uninitialised memory, which makes it certain. Declared shapes
  are right, and so are indices that reach the stage as a keyword argument.
Where: torch 2.13.0, distributed/pipelining/_utils.py, _TensorMeta.to_tensor, line 95 (torch.empty_strided), called by
  stage.py, PipelineStage._forward_metadata_inference, lines 1922 and 1932.
Why: shape inference runs the real module of a later stage on inputs of which it knows shapes and dtypes only. Their
  values are whatever is in memory, which as an index is nearly always out of range.
Requirement: none (near FWD-6).
Schedules: all, unless every stage has input_args and output_args.
Known: https://github.com/NVIDIA-NeMo/Automodel/pull/3290 (merged) works around it by declared shapes, where stages of a
  language model failed in scatter_. Earlier releases took zeros, which are valid indices
  (https://github.com/pytorch/pytorch/issues/167425 asks why); the code is of
  https://github.com/pytorch/pytorch/pull/177728.
Possible fix: zeros, as before; or inference under FakeTensorMode, which has no values.
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

WORLD, M, WIDTH, WORDS, LENGTH = 2, 4, 3, 5, 4
WAITS = "waits for the other rank"
CASES = (
    ("GPipe", "step", "declared", "embedding"),
    ("GPipe", "step", "inferred, indices by keyword", "embedding"),
    ("GPipe", "step", "inferred", "embedding"),
    ("GPipe", "step", "inferred", "indexing"),
    ("GPipe", "step", "inferred", "one_hot"),
    ("GPipe", "eval", "inferred", "embedding"),
    ("1F1B", "step", "inferred", "embedding"),
    ("Interleaved1F1B", "step", "inferred", "embedding"),
    ("LoopedBFS", "step", "inferred", "embedding"),
    ("InterleavedZeroBubble", "step", "inferred", "embedding"),
    ("ZBVZeroBubble", "step", "inferred", "embedding"),
    ("DualPipeV", "step", "inferred", "embedding"),
)


class Stage(nn.Module):
    """Hidden states and ids; the first stage is given ids, the last one gives hidden states."""

    def __init__(self, s, n, lookup, by_keyword):
        super().__init__()
        self.first, self.last, self.lookup, self.by_keyword = s == 0, s == n - 1, lookup, by_keyword
        self.words, self.linear = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, *given, ids=None):
        if ids is None or self.first:
            ids = given[-1]
        if self.lookup == "embedding":
            found = self.words(ids)
        elif self.lookup == "indexing":
            found = self.words.weight[ids]
        else:
            found = nn.functional.one_hot(ids, WORDS).float() @ self.words.weight
        hidden = self.linear(found if self.first else given[0] + found)
        return hidden if self.last or self.by_keyword else (hidden, ids)


def run(rank, name, how, shapes, lookup):
    """What the first step does on this rank."""
    torch.use_deterministic_algorithms(True)  # fills uninitialised memory, integers with the largest one
    cls = get_schedule_class(name)
    several, v_shaped = issubclass(cls, PipelineScheduleMulti), name in ("ZBVZeroBubble", "DualPipeV")
    n = 2 * WORLD if several else WORLD
    owned = [rank, n - 1 - rank] if v_shaped else list(range(rank, n, WORLD))
    by_keyword = shapes.endswith("keyword")
    torch.manual_seed(0)
    modules = [Stage(s, n, lookup, by_keyword) for s in range(n)]
    ids, y = torch.randint(WORDS, (2 * M, LENGTH)), torch.randn(2 * M, LENGTH, WIDTH)
    given = (ids,)
    for module in modules:
        given = module(*given, ids=ids)
        given = given if isinstance(given, tuple) else (given,)
    nn.functional.mse_loss(given[0], y).backward()
    right = {s: [p.grad for p in modules[s].parameters()] for s in owned}
    for module in modules:
        module.zero_grad()
    stages = []
    for s in owned:
        examples = {}
        if shapes == "declared":
            id_mb, hidden_mb = ids[:2], torch.zeros(2, LENGTH, WIDTH, requires_grad=True)
            examples["input_args"] = (hidden_mb, id_mb) if s else (id_mb,)
            examples["output_args"] = (hidden_mb,) if s == n - 1 else (hidden_mb, id_mb)
        stages.append(PipelineStage(modules[s], s, n, torch.device("cpu"), **examples))
    schedule = cls(stages if several else stages[0], M, loss_fn=nn.functional.mse_loss)
    args, target = (ids,) if 0 in owned else (), {"target": y} if n - 1 in owned else {}
    try:
        getattr(schedule, how)(*args, **target, **({"ids": ids} if by_keyword else {}))
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        if "gloo" in str(error):
            return "loses the connection to the other rank"
        return f"raises {type(error).__name__}: {str(error).strip().splitlines()[0][:70]}"
    if how == "eval":
        return "returns"
    wrong = []
    for s in owned:
        for parameter, gradient in zip(modules[s].parameters(), right[s], strict=True):
            if parameter.grad is None or not torch.allclose(parameter.grad, gradient, atol=1e-5):
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
        found = [file.read_text() if file.exists() else WAITS for file in files]
        for process in processes:
            process.kill()
            process.join()
    if WAITS in found and not any("raises" in text for text in found):
        sys.exit("inconclusive: a rank gave no result")
    return found


def main():
    print("expected: no error, and right gradients")
    for case in CASES:
        name, how, shapes, lookup = case
        for rank, found in enumerate(outcomes(case)):
            print(f"  {lookup}, {name}, {how}(), {shapes}, rank {rank}: {found}")


if __name__ == "__main__":
    main()
