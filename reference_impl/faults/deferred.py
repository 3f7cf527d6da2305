"""Wrappers that are wrong on purpose about modules that are materialised after they were wrapped.

Every class changes one thing in the reference's wrapper; `sharding` has one more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..data_parallel import DataParallel
from ..deferred import materialise, own_device
from ..replica_state import broadcast
from .fault import breaks_promise

__all__: list[str] = []


@breaks_promise("DPW-43", tells="once it is materialised")
class MaterialisedApart(DataParallel):
    """Every rank keeps the values that its own parts initialised."""

    def materialise(self, device: torch.device | None = None) -> None:
        materialise(self.module, device=device or own_device())
        own = {name: p.detach().clone() for name, p in self.module.named_parameters()}
        super().materialise(device)
        with torch.no_grad():
            for name, parameter in self._parameters_kept.items():
                parameter.copy_(own[name])


@breaks_promise("DPW-43", tells="once it is materialised")
class MemoryOnly(DataParallel):
    """Parameters get memory, and no values."""

    def materialise(self, device: torch.device | None = None) -> None:
        super().materialise(device)
        with torch.no_grad():
            for parameter in self._parameters_kept.values():
                parameter.zero_()


@breaks_promise("DPW-43", tells="gradient of")
class HooksOfBefore(DataParallel):
    """Gradients are watched on the parameters from before materialisation."""

    def materialise(self, device: torch.device | None = None) -> None:
        materialise(self.module, device=device or own_device())
        broadcast(self.module.parameters(), self.group)
        self._on_meta = False


@breaks_promise("DPW-43", tells="raised nothing")
class MaterialisedByItself(DataParallel):
    """The first forward gives memory to tensors on the meta device, whatever is in it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._on_meta:
            self.module.to_empty(device=args[0].device)
            self._on_meta = False
        return super().forward(*args, **kwargs)


@breaks_promise("DPW-43", tells="norm.running_var once")
class BuffersLeftOut(DataParallel):
    """Buffers get memory, and no values."""

    def materialise(self, device: torch.device | None = None) -> None:
        super().materialise(device)
        for part in self.module.modules():
            if isinstance(part, nn.BatchNorm1d):
                part.running_var.zero_()  # type: ignore[union-attr]
