"""What a traced model returns from an earlier stage is lost, and what it is computed from gets wrong gradients.

What: a model returns its result and something that is computed in an earlier stage: an auxiliary loss, or activations
  to look at. Split by pipeline(), (a) step() and eval() return what the last stage computes and nothing else, and the
  loss function is given nothing else, without a word. (b) In training, an early output of one element, such as an
  auxiliary loss that is only watched, is differentiated with the weight 1 in every microbatch: gradients of its stage
  and of those before are wrong; the loss is right. (c) One of more elements raises "grad can be implicitly created
  only for scalar outputs" on its rank, and the others wait. Called on one process, the Pipe returns both, rightly.
Where: torch 2.13.0, distributed/pipelining/stage.py, _create_act_send_info, line 1474, and the traced
  _create_grad_recv_info, line 1559; forward_one_chunk, line 908, for the outputs.
Why: an output that goes to no stage but to the model's own output is sent nowhere, and gets None for its gradient,
  which autograd takes for 1. What the model returns is never compared with what the last stage returns.
Requirement: TRC-7.
Schedules: all that run traced stages; (b) and (c) where there is a loss.
Known: no thread about this is known.
Possible fix: refuse in pipeline() a model that returns something which is not computed in the last stage, by name; or
  hand it on to the last stage. In the backward, leave out outputs for which no gradient is received.
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
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

WORLD, M, WIDTH = 2, 4, 3
WAITS = "waits for the other rank"
SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble")
RETURNED = {
    "its result": "y",
    "its result, and what the last stage but one hands on": "h",
    "its result, and a mean from the last stage but one": "mean",
    "its result, and more elements from the last stage but one": "elements",
}


class Model(nn.Module):
    """A chain of linear maps, one for each stage."""

    def __init__(self, num_stages, returned):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(num_stages))
        self.returned = returned

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = layer(x)
        early = {"h": x, "mean": x.square().mean(), "elements": 2 * x}.get(self.returned)
        y = self.layers[-1](x)
        return y if early is None else (y, early)


def loss_function(output, target):
    """The loss of the result, whatever is returned beside it."""
    return nn.functional.mse_loss(output[0] if isinstance(output, tuple) else output, target)


def number(output):
    return len(output) if isinstance(output, tuple) else 1


def run(rank, name, how, returned):
    """What a step does on this rank."""
    cls = get_schedule_class(name)
    several = issubclass(cls, PipelineScheduleMulti)
    n = 2 * WORLD if several else WORLD
    owned = list(range(rank, n, WORLD))
    torch.manual_seed(1)
    x, y = torch.randn(2 * M, WIDTH), torch.randn(2 * M, WIDTH)
    alone = Model(n, returned)
    out = alone(x)
    loss = loss_function(out, y)
    loss.backward()
    spec = {f"layers.{s}": SplitPoint.BEGINNING for s in range(1, n)}
    model = Model(n, returned)
    pipe = pipeline(model, (x[:2],), split_spec=spec)
    stages = [pipe.build_stage(s, torch.device("cpu")) for s in owned]
    schedule = cls(stages if several else stages[0], M, loss_fn=loss_function)
    args, target = (x,) if 0 in owned else (), {"target": y} if n - 1 in owned else {}
    losses = []
    try:
        if how == "eval":
            with torch.no_grad():
                found = schedule.eval(*args, **target, losses=losses)
        else:
            found = schedule.step(*args, **target, losses=losses)
    except Exception as error:
        while error.__cause__ is not None:
            error = error.__cause__
        return f"expected no error, actual {type(error).__name__}: {str(error).strip()[:70]}"
    told = []
    if n - 1 in owned:
        told.append((f"outputs {number(out)}", f"outputs {number(found)}"))
        told.append(("right loss", "right loss" if torch.allclose(sum(losses) / M, loss) else "wrong loss"))
    if how == "step":
        wrong = []
        for s in owned:
            gradient = model.layers[s].weight.grad
            if gradient is None or not torch.allclose(gradient, alone.layers[s].weight.grad, atol=1e-5):
                wrong.append(s)
        told.append(("right gradients", f"wrong gradients in stages {wrong}" if wrong else "right gradients"))
    if not told:
        return "returns"
    return f"expected {', '.join(one for one, _ in told)}, actual {', '.join(one for _, one in told)}"


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
        while not all(file.exists() for file in files) and time.monotonic() - (ended or started + 35) < 5:
            if ended is None and any(file.exists() for file in files):
                ended = time.monotonic()
            time.sleep(0.1)
        found = [file.read_text() if file.exists() else WAITS for file in files]
        for process in processes:
            process.kill()
            process.join()
    if WAITS in found and not any("actual RuntimeError" in text for text in found):
        sys.exit("inconclusive: a rank gave no result")
    return found


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for returned, kind in RETURNED.items():
        print(f"the model returns {returned}")
        x = torch.randn(2 * M, WIDTH)
        pipe = pipeline(Model(2, kind), (x,), split_spec={"layers.1": SplitPoint.BEGINNING})
        expected = number(Model(2, kind)(x))
        print(
            f"  the Pipe called on one process: expected outputs {expected}, actual outputs {number(pipe(x))}"
        )
        for name in SCHEDULES:
            for how in ("eval", "step") if name == "GPipe" else ("step",):
                for rank, text in enumerate(outcomes((name, how, kind))):
                    print(f"  {name}, {how}(), rank {rank}: {text}")


if __name__ == "__main__":
    main()
