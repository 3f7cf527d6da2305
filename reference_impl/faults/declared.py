"""Faults of stages whose boundaries the user declares (FWD-32)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..adapter import ReferencePipeline
from ..stage import Stage
from .fault import breaks


class _TakenAsDeclared(ReferencePipeline):
    """If boundaries are declared, stages but the first get what is made of their inputs and the declaration."""

    def make_stage(self, index: int, module: nn.Module) -> Stage:
        if self.plan.declared is not None and index:
            specs = self.plan.declared[index].inputs
            examples = [
                torch.zeros(one.shape, dtype=one.dtype).requires_grad_(one.requires_grad) for one in specs
            ]

            def given(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
                return tuple(map(self.taken, args, examples))

            module.register_forward_pre_hook(given)
        return super().make_stage(index, module)

    def taken(self, value: Tensor, example: Tensor) -> Tensor:
        raise NotImplementedError


@breaks("FWD-32", tells=r"the gradient of [\w.]+ in stage 0 is not the reference's")
class ExamplesBelieved(_TakenAsDeclared):
    """A tensor whose example needs no gradient is taken for one that needs none."""

    def taken(self, value: Tensor, example: Tensor) -> Tensor:
        return value if example.requires_grad else value.detach()


@breaks("FWD-32", tells=r"the gradient of [\w.]+ in stage \d is not the reference's", schedule="GPipe")
class ReceivedIntoTheExample(_TakenAsDeclared):
    """All microbatches are received into the memory of one example, also while a backward still needs it."""

    def taken(self, value: Tensor, example: Tensor) -> Tensor:
        example.data.copy_(value)
        value.data = example.data
        return value


@breaks("FWD-32", tells=r"input \d of stage \d \(microbatch \d\) did not arrive unchanged")
class ExamplesInTheirPlace(_TakenAsDeclared):
    """Tensors that need no gradient are not sent: their examples are taken for them."""

    def taken(self, value: Tensor, example: Tensor) -> Tensor:
        return value if value.requires_grad else example.detach()
