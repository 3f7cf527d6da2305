"""A module with delays: on one rank, after the loss, before gradients are reduced, or before parameters are freed.

A wrapper that forgets to wait for its own communication may look right as long as all ranks are equally fast.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from pipeconform.errors import UsageError

__all__ = ["Delayed"]


class Delayed(nn.Module):
    """Wraps `module`, whose output must be a tensor, and sleeps for the given seconds on this rank.

    - `loss`: after the loss, when the gradient of the output arrives and no parameter has one yet.
    - `reduction`: in the backward pass, when the gradient of the inputs arrives. The gradients of this module's
      parameters have been, or are about to be, reduced then. Needs inputs that require a gradient.
    - `freeing`: at the end of the forward, after which a sharded wrapper around this module frees the whole parameters.
    """

    def __init__(
        self, module: nn.Module, *, loss: float = 0.0, reduction: float = 0.0, freeing: float = 0.0
    ) -> None:
        """Wrap a module.

        Raises:
            UsageError: a delay is negative.
        """
        super().__init__()
        for name, seconds in (("loss", loss), ("reduction", reduction), ("freeing", freeing)):
            if seconds < 0:
                raise UsageError(f"Delayed: {name} is {seconds} s; a delay is at least 0")
        self.module = module
        self.loss, self.reduction, self.freeing = loss, reduction, freeing

    def forward(self, *args: Any) -> Tensor:
        """Run the module."""
        given = [_slow(one, self.reduction) if _counts(one, self.reduction) else one for one in args]
        output: Tensor = self.module(*given)
        if self.freeing:
            time.sleep(self.freeing)
        if _counts(output, self.loss):
            return _slow(output, self.loss)
        return output


def _counts(value: Any, seconds: float) -> bool:
    return seconds > 0 and isinstance(value, Tensor) and value.requires_grad


def _slow(value: Tensor, seconds: float) -> Tensor:
    result: Tensor = _Sleep.apply(value, seconds)  # type: ignore[no-untyped-call]
    return result


class _Sleep(torch.autograd.Function):
    """The identity; sleeps in the backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None
