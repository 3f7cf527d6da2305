"""The optimizer over float32 copies of parameters, and the scale of the loss.

Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, sections 3.1 and 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeconform.adapter import AdamStep, LossScaling, SgdStep, optimizer_of

__all__ = ["LossScale", "Masters"]


class Masters:
    """Float32 copies of the parameters that require a gradient; they are stepped, and rounded into the parameters."""

    def __init__(self, parameters: Iterable[nn.Parameter], spec: SgdStep | AdamStep | None) -> None:
        self.copies = {
            p: nn.Parameter(p.detach().float()) for p in dict.fromkeys(parameters) if p.requires_grad
        }
        self.optimizer = optimizer_of(self.copies.values(), spec)

    def take(self, *, scale: float = 1.0) -> None:
        """Give the copies the gradients of their parameters, in float32 and divided by `scale`."""
        for parameter, copy in self.copies.items():
            copy.grad = None if parameter.grad is None else parameter.grad.float() / scale

    def step(self) -> None:
        """Step the copies with the gradients that they have, and round them into the parameters."""
        if self.optimizer is not None:
            self.optimizer.step()
        self.round()

    @torch.no_grad()
    def round(self) -> None:
        """Give every parameter its copy's value."""
        for parameter, copy in self.copies.items():
            parameter.copy_(copy)

    @torch.no_grad()
    def reload(self) -> None:
        """Give every copy its parameter's value, which was loaded."""
        for parameter, copy in self.copies.items():
            copy.copy_(parameter)


class LossScale:
    """The scale of the loss, which the ranks of a pipeline lower together."""

    def __init__(self, by: LossScaling, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self.value = by.initial
        self.backoff = by.backoff
        self.group, self.device = group, device

    def allows(self, gradients: Sequence[Tensor]) -> bool:
        """Whether the optimizer may step; if not, the scale has been lowered. Collective over the pipeline."""
        overflowed = self.overflowed(gradients)
        if overflowed:
            self.value *= self.backoff
        return not overflowed

    def overflowed(self, gradients: Sequence[Tensor]) -> bool:
        """Whether any rank has a gradient that is not finite; `gradients` are this rank's."""
        found = torch.zeros((), device=self.device)
        for gradient in gradients:
            found = torch.maximum(found, (~gradient.isfinite()).any().to(found.dtype))
        if self.group is not None:
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.group)
        return bool(found)
