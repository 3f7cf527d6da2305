"""Finds out, by comparing bytes, whether a stage's input came in a message.

`cargo` recognises a tensor by its memory, which fails if an engine copies what it received. Here bytes are
compared: those of a stage's input must occur unchanged in what operations brought to this rank in the same step,
whatever is before and after them, in one operation or in several, one after the other. What the rank itself put
into a collective (its own part of an all-gather) does not count as brought: that is what the collective left as it was.
Memory that was written does not count as given, whatever was in it: it may hold the values of an earlier step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeconform.observe.array import memory_of
from pipeconform.observe.traffic.cargo import tensors_of
from pipeconform.observe.traffic.records import Arrived

__all__ = ["Carried", "ContentFinder", "bytes_of"]


class Carried(NamedTuple):
    """The tensors of an operation that something may arrive in, and, of a collective, their bytes before."""

    tensors: Sequence[Tensor] = ()
    before: Sequence[bytes] = ()


class ContentFinder:
    """Knows what operations brought since the step began, and which inputs of stages were among it.

    `pending` gives the tensors of collectives whose end was not seen, with their bytes before; what lies in their
    memory may have arrived.
    """

    def __init__(self, pending: Callable[[], Iterable[Carried]] = tuple) -> None:
        self.found: list[Arrived] = []
        self._pending = pending
        self._step = -1
        self._brought = bytearray()

    def begin(self, step: int) -> None:
        """A step begins; what arrived before does not count for it."""
        self._step = step
        self._brought.clear()

    def brought(self, carried: Carried) -> None:
        """Note the tensors of an operation that has ended."""
        self._brought += _news_in(carried)

    def passed(self, stage: int, forward: int, inputs: Sequence[Any]) -> None:
        """A forward of `stage` has ended; it was number `forward` of all that the rank ran in this step."""
        if torch._C._current_graph_task_id() != -1:
            return  # a recomputation: its inputs came earlier
        late = b"".join(map(_news_in, self._pending()))
        self.found.append(
            Arrived(self._step, stage, forward, tuple(self._came(one, late) for one in tensors_of(inputs)))
        )

    def _came(self, tensor: Tensor, late: bytes) -> bool:
        wanted = bytes_of(tensor)
        return wanted in self._brought or wanted in late


def _news_in(carried: Carried) -> bytes:
    """The bytes that came: those of all tensors, or what a collective changed, without this rank's own part of it."""
    now = [bytes_of(tensor) for tensor in carried.tensors]
    if not carried.before:
        return b"".join(now)
    both = list(zip(now, carried.before, strict=True))
    came = [new for new, old in both if new != old]
    for own in (new for new, old in both if new == old and new):
        at = next((index for index, new in enumerate(came) if own in new), None)
        if at is not None:
            came[at] = came[at].replace(own, b"", 1)
    return b"".join(came)


def bytes_of(tensor: Tensor) -> bytes:
    """The elements of a tensor, one after the other; empty if it has no memory here."""
    if tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return b""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # a DTensor's part
    return memory_of(local.detach().contiguous().cpu())
