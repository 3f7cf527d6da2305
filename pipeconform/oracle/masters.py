"""Float32 copies of parameters, and the scale of the loss, in the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from pipeconform.case.case import Sgd
from pipeconform.oracle.clipping import clip

__all__ = ["Masters"]


class Masters:
    """Copies of parameters, which are stepped in their place and then rounded into them.

    `rounding` is a region in which the analysis counts a conversion as one rounding, which it is for every engine.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        by: Sgd,
        *,
        rounding: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._rounding = rounding
        self._copies = [(p, nn.Parameter(p.detach().to(torch.float32))) for p in parameters]
        copies = [copy for _, copy in self._copies]
        self._optimizer = torch.optim.SGD(copies, lr=by.lr, momentum=by.momentum) if copies else None
        self._clip = by.clip
        self._backoff = 1.0 if by.scaling is None else by.scaling.backoff
        self.scale = None if by.scaling is None else by.scaling.initial
        """What the next step's losses are multiplied by; None if they are not scaled."""

    def step(self, *, finite: bool) -> None:
        """Step with the gradients in float32, without their scale and clipped; not if one of them is not finite."""
        if self.scale is not None and not finite:
            self.scale *= self._backoff
            return
        for parameter, copy in self._copies:
            gradient = parameter.grad
            copy.grad = None if gradient is None else gradient.to(torch.float32) / (self.scale or 1.0)
        if self._clip is not None:
            clip((copy for _, copy in self._copies), self._clip)
        if self._optimizer is not None:
            self._optimizer.step()
        with torch.no_grad(), self._rounding():
            for parameter, copy in self._copies:
                parameter.copy_(copy)

    def load(self) -> None:
        """Start anew from the parameters, which have been loaded."""
        with torch.no_grad():
            for parameter, copy in self._copies:
                copy.copy_(parameter)
