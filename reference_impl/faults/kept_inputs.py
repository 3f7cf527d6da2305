"""Faults in what happens to a stage's inputs after their microbatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..containers import map_leaves
from ..stage import Stage
from .fault import breaks


def _received_into(buffer: Tensor, value: Tensor) -> Tensor:
    """What the module is given if a tensor arrives in `buffer`."""
    buffer.copy_(value.detach())
    return buffer.detach().requires_grad_(value.requires_grad)


class _Receiving(Stage):
    """Knows the tensors that each microbatch was given by the stage before."""

    given: dict[int, list[Tensor]]

    def forward(self, microbatch: int, inputs: Any, kwargs: Mapping[str, Any], **how: Any) -> Any:
        if self.index == 0:
            return super().forward(microbatch, inputs, kwargs, **how)
        self.given = {**getattr(self, "given", {}), microbatch: []}
        received = map_leaves(lambda leaf: self._received(microbatch, leaf), inputs)
        return super().forward(microbatch, received, kwargs, **how)

    def _received(self, microbatch: int, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        found = self.received(microbatch, leaf)
        self.given[microbatch].append(found)
        return found

    def received(self, microbatch: int, value: Tensor) -> Tensor:
        """What the module is given instead of a tensor that arrived."""
        return value


@breaks("FWD-35", source="https://github.com/pytorch/pytorch/issues/185331")
class ReceiveBuffersServeEveryStep(_Receiving):
    """A receive buffer belongs to the number of a microbatch, and every step receives into it."""

    buffers: dict[Any, Tensor]

    def received(self, microbatch: int, value: Tensor) -> Tensor:
        self.buffers = getattr(self, "buffers", {})
        key = microbatch, len(self.given[microbatch]), tuple(value.shape), value.dtype
        buffer = self.buffers.setdefault(key, torch.empty_like(value.detach()))
        return _received_into(buffer, value)


@breaks("FWD-35")
class InputsErased(_Receiving):
    """Once a microbatch has gone backward, its inputs are filled with zeros."""

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        result = super().backward(microbatch, gradients)
        for value in getattr(self, "given", {}).pop(microbatch, []):
            value.detach().zero_()
        return result


@breaks(
    "FWD-7",
    also=("FWD-35",),
    source="https://github.com/NVIDIA-NeMo/Automodel/pull/3780",
)
class ReceiveBuffersTakenBack(_Receiving):
    """A microbatch's receive buffers serve the next one once it has gone backward, though outputs may lie in them."""

    free: dict[Any, list[Tensor]]

    def received(self, microbatch: int, value: Tensor) -> Tensor:
        self.free = getattr(self, "free", {})
        buffers = self.free.get((tuple(value.shape), value.dtype))
        buffer = buffers.pop() if buffers else torch.empty_like(value.detach())
        return _received_into(buffer, value)

    def backward(self, microbatch: int, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        result = super().backward(microbatch, gradients)
        for value in self.given.pop(microbatch, []) if self.index > 0 else ():
            self.free.setdefault((tuple(value.shape), value.dtype), []).append(value.detach())
        return result
