"""Recorded communication as plain data."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Layout", "Moment", "Operation", "Pending"]

# Every operation of a step makes records, and they hold no cycles: the garbage collector need not look at them.


class Layout(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tensor's layout in memory."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __str__(self) -> str:
        """``float64[2, 3]``, with strides where it is not contiguous."""
        size, contiguous = 1, True
        for length, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            contiguous &= length == 1 or stride == size
            size *= length
        return f"{self.dtype}{list(self.shape)}" + ("" if contiguous else f" of strides {list(self.stride)}")


class Operation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One operation of a process group as one rank issued it."""

    number: int
    """Its place among all operations of the rank, from 0."""
    kind: Literal["send", "receive", "collective"]
    name: str
    """torch's operator: ``send``, ``recv_``, ``allreduce_``, …"""
    group: str
    """The group's name; its members are in `Traffic.groups`."""
    peer: int
    """The other end, or the root of a collective, as a rank of the group; −1 where there is none or any."""
    process: int
    """The same as a rank of the world."""
    tag: int
    tensors: tuple[Layout, ...]
    num_bytes: int
    batch: int = -1
    """Operations of one batch have the same number, from 0; −1 outside of any."""
    step: int = -1
    """The step of the program; −1 before the first, its length after the last."""

    def __str__(self) -> str:
        """``send of float64[2, 3] to rank 1, operation 4``."""
        what = ", ".join(map(str, self.tensors)) or "nothing"
        tagged = f" with tag {self.tag}" if self.tag else ""
        match self.kind:
            case "send":
                return f"send of {what} to rank {self.process}{tagged}, operation {self.number}"
            case "receive":
                source = "any rank" if self.process < 0 else f"rank {self.process}"
                return f"receive of {what} from {source}{tagged}, operation {self.number}"
        return f"{self.name.strip('_')} of {what}, operation {self.number}"


class Moment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that a rank did: it issued an operation, or waited until one was complete."""

    kind: Literal["issue", "wait"]
    operation: int


class Pending(msgspec.Struct, frozen=True):
    """An operation that was issued and not waited for to the end."""

    operation: Operation
    since: float
    """When it was issued, or when the wait began; in this process's ``time.monotonic()``."""
    blocks: bool
    """Whether the rank is waiting for it right now."""

    def __str__(self) -> str:
        """The operation, and whether it is waited for."""
        return f"{'waits for' if self.blocks else 'has not waited for'} {self.operation}"
