"""Models and data of which nothing is rounded in bfloat16 but sums over microbatches, steps and replicas.

All factors are 1, so every stage is given the inputs, 1 or 256, and the target is 1 less. The derivative of a squared
difference is then 2, and the gradient of a stage's factor is the inputs' sum times a constant. Of bfloat16 the sum of
256 and 1 is 256, in float32 it is 257.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeconform.case.case import Case, Eval, Train

__all__ = ["LARGE", "GainLayer", "inputs_of", "targets_of"]

LARGE = 256.0
"""One sample's inputs: bfloat16 has 8 bits of precision, and so no number between this and two more."""


class GainLayer(nn.Module):
    """A factor for every column."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        return x * self.weight


def inputs_of(case: Case, step_index: int, *, replica: int) -> Tensor:
    """``[B, width]``, or ``[B, 1, width]`` with a sequence: 1, but the first replica's first sample is `LARGE`."""
    step, model = case.program[step_index], case.model
    assert isinstance(step, Train | Eval)
    shape = [step.batch_size, *([1] if model.sequence else []), model.width]
    inputs = torch.ones(shape, dtype=getattr(torch, model.dtype))
    first = next((i for i, one in enumerate(case.program) if isinstance(one, Train)), None)
    if replica == 0 and step_index == first:
        inputs[0] = LARGE
    return inputs.movedim(0, model.batch_dim).contiguous()


def targets_of(inputs: Tensor) -> Tensor:
    """1 less than the outputs, which are the inputs."""
    return inputs.detach() - 1
