"""After a step that raised, a new engine goes backward from the losses of that step, or of the step before.

What: the model raises at a microbatch (a bad sample; memory runs out), and the caller catches the error and
  goes on with another batch. Under AllForwardAllBackwardPipelineEngine the losses of the aborted step, if
  there are any, are added to those of the next one: its gradients are wrong, and nothing is raised. Under
  OneForwardOneBackwardPipelineEngine the next step leaves out its last microbatch and raises an
  AssertionError without a message; so does every later one, which has the last microbatch of the step before
  it instead. New engines do not help; emptying the deques of the class does.
Where: nanotron, main branch of April 2026 (2411b022), which calls itself 0.4 and must be on PYTHONPATH (the
  wheel 0.4 cannot be imported). parallel/pipeline_parallel/state.py, PipelineTrainBatchState, lines 91 to 98
  (also line 54, and PipelineEvalBatchState, lines 202 to 204); engine.py, lines 190 and 217, and lines 256
  and 316.
Why: the deques are attributes of the class (they have no annotations, so dataclass makes no fields of them).
  The "new state for the current batch" has the old one's deques, with what the aborted step left there.
Requirement: ERR-11.
Schedules: AllForwardAllBackwardPipelineEngine and OneForwardOneBackwardPipelineEngine; shown on one rank.
Possible fix: an annotation and `dataclasses.field(default_factory=collections.deque)` for each of them. With
  this, the script shows what is expected.
"""

import collections
import warnings

import torch
import torch.distributed as dist
from nanotron.parallel.pipeline_parallel import engine as engines
from nanotron.parallel.pipeline_parallel.block import PipelineBlock
from nanotron.parallel.pipeline_parallel.p2p import P2P
from nanotron.parallel.pipeline_parallel.state import PipelineTrainBatchState
from torch import nn

ENGINES = ("AllForwardAllBackwardPipelineEngine", "OneForwardOneBackwardPipelineEngine")
BAD = float("nan")  # the model refuses this sample
LATER = ((1.0, 3.0), (5.0, 9.0))  # the batches of the steps after the aborted one, a microbatch each number
CASES = {  # the batch of the step before, and whether the deques are emptied by hand after it
    "the step before succeeds": ((100.0, 200.0), False),
    "the step before raises at its first microbatch": ((BAD, 200.0), False),
    "the step before raises at its second microbatch": ((100.0, BAD), False),
    "the same, and the class's deques are emptied": ((100.0, BAD), True),
}


class Model(nn.Module):
    """A microbatch's loss is its sample times the weight; a step's gradient is the mean of its samples."""

    def __init__(self):
        super().__init__()
        p2p = P2P(dist.group.WORLD, device=torch.device("cpu"))
        self.block = PipelineBlock(p2p, lambda: nn.Linear(1, 1, bias=False), {}, {"input"}, {"output"})
        self.block.build_and_set_rank(0)

    def forward(self, x):
        if x.isnan().any():
            raise ValueError("bad sample")
        return self.block(input=x)["output"].sum()


def step(name, model, batch):
    """The gradient of a step of a new engine, and what it raises."""
    model.zero_grad()
    microbatches = [{"x": torch.tensor([[sample]])} for sample in batch]
    told = ""
    try:
        getattr(engines, name)().train_batch_iter(model, dist.group.WORLD, microbatches, len(batch), None)
    except (AssertionError, ValueError) as error:
        told = f", {type(error).__name__} {str(error)!r}"
    gradient = model.block.pp_block.weight.grad
    return f"{None if gradient is None else gradient.item()}{told}"


def empty_deques():
    for kind in PipelineTrainBatchState.__mro__:
        for thing in vars(kind).values():
            if isinstance(thing, collections.deque):
                thing.clear()


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for words, (before, by_hand) in CASES.items():
        print(words)
        for name in ENGINES:
            empty_deques()  # of what the case before left there
            model = Model()
            step(name, model, before)
            if by_hand:
                empty_deques()
            for number, batch in enumerate(LATER, 1):
                expected = sum(batch) / len(batch)
                print(f"  {name}, step {number} after it: ", end="")
                print(f"expected gradient {expected}, actual {step(name, model, batch)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
