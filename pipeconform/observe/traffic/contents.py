"""Finds out, by comparing bytes, whether a stage's input came in a message.

`cargo` recognises a tensor by its memory, which fails if an engine copies what it received. Here bytes are
compared: those of a stage's input must occur unchanged in what operations brought to this rank in the same step,
whatever is before and after them, in one operation or in several, one after the other. What the rank itself put
into an operation (its own part of an all-gather) does not count as brought.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from pipeconform.observe.array import memory_of
from pipeconform.observe.traffic.cargo import tensors_of
from pipeconform.observe.traffic.records import Arrived

__all__ = ["ContentFinder", "bytes_of"]


class ContentFinder:
    """Knows what operations brought since the step began, and which inputs of stages were among it.

    `pending` gives the tensors of collectives whose end was not seen; what lies in their memory may have arrived.
    """

    def __init__(self, pending: Callable[[], Iterable[Tensor]] = tuple) -> None:
        self.found: list[Arrived] = []
        self._pending = pending
        self._step = -1
        self._brought, self._given = bytearray(), bytearray()

    def begin(self, step: int) -> None:
        """A step begins; what arrived before does not count for it."""
        self._step = step
        self._brought.clear()
        self._given.clear()

    def gives(self, tensors: Iterable[Tensor]) -> None:
        """Note tensors that the rank itself puts into an operation."""
        for tensor in tensors:
            self._given += bytes_of(tensor)

    def brought(self, tensors: Iterable[Tensor]) -> None:
        """Note the tensors of an operation that has ended."""
        for tensor in tensors:
            self._brought += bytes_of(tensor)

    def passed(self, stage: int, forward: int, inputs: Sequence[Any]) -> None:
        """A forward of `stage` has ended; it was number `forward` of all that the rank ran in this step."""
        if torch._C._current_graph_task_id() != -1:
            return  # a recomputation: its inputs came earlier
        late = b"".join(map(bytes_of, self._pending()))
        self.found.append(
            Arrived(self._step, stage, forward, tuple(self._came(one, late) for one in tensors_of(inputs)))
        )

    def _came(self, tensor: Tensor, late: bytes) -> bool:
        wanted = bytes_of(tensor)
        return wanted not in self._given and (wanted in self._brought or wanted in late)


def bytes_of(tensor: Tensor) -> bytes:
    """The elements of a tensor, one after the other; empty if it has no memory here."""
    if tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return b""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # a DTensor's part
    return memory_of(local.detach().contiguous().cpu())
