"""Faults of timing: which rank waits for which, memory that is still in flight, and late messages."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..link import Link
from .communication import PADDING, WatchedWork
from .fault import breaks
from .wire import _alike

# --------------------------------------------------------------------------- COM-3: waiting in a circle


@breaks(
    "COM-3",
    tells=r"(?s)in order per communicator .*rank (\d) serves its receive .* only after its send .*which needs rank",
    or_hangs=True,
)
class SendsCross(Link):
    """Two ranks that exchange something both begin with the send, which waits for the other's receive."""

    def warm_up(self, placement: Sequence[int], *, position: int) -> None:
        for other in sorted({b for a, b in _neighbours(placement) if a == position}):
            process = self.process(other)
            sent = torch.zeros(1, dtype=torch.uint8, device=self.device)
            works = [self.start_send(sent, process), self.start_receive(torch.zeros_like(sent), process)]
            for work in works:
                work.wait()


@breaks(
    "COM-3", tells="(?s)in order per communicator .*with tag 2.* only after its .*with tag 1", or_hangs=True
)
class TagsRelied(Link):
    """Messages are received by their tags, in another order than they were sent in.

    Sends two messages where one would do, and receives the second one first.
    """

    def start_send(self, data: Tensor, process: int) -> Any:
        note = torch.zeros(1, dtype=torch.uint8, device=self.device)
        first = dist.isend(data, process, group=self.group, tag=1)
        return _Both(first, dist.isend(note, process, group=self.group, tag=2))

    def start_receive(self, data: Tensor, process: int) -> Any:
        note = torch.zeros(1, dtype=torch.uint8, device=self.device)
        second = dist.irecv(note, process, group=self.group, tag=2)
        return _Both(second, dist.irecv(data, process, group=self.group, tag=1))


@dataclass(frozen=True)
class _Both(WatchedWork):
    other: Any

    def wait(self) -> None:
        super().wait()
        self.other.wait()


# ------------------------------------------------------------------------- COM-4: memory in flight

# on a busy machine a message may arrive late enough to be read too early in plain cases, too: FWD-1


class _Forgotten(WatchedWork):
    def wait(self) -> None:
        """Do not wait."""


@breaks("COM-4", tells=r"rank \d never waits for its receive of uint8\[1\] from rank \d", also=("FWD-1",))
class WaitForgotten(Link):
    """The receives of the warm-up are never waited for."""

    warm = False

    def warm_up(self, placement: Sequence[int], *, position: int) -> None:
        self.warm = True
        super().warm_up(placement, position=position)
        self.warm = False

    def start_receive(self, data: Tensor, process: int) -> Any:
        work = super().start_receive(data, process)
        return _Forgotten(work) if self.warm else work


@dataclass(frozen=True)
class _Early(WatchedWork):
    data: Tensor

    def wait(self) -> None:
        early = self.data.clone()
        super().wait()
        self.data[PADDING:] = early[PADDING:]


@breaks("COM-4", also=("FWD-1",))
class ReadBeforeWait(Link):
    """Tensors are taken from the buffer before the receive has been waited for; the description after."""

    def start_receive(self, data: Tensor, process: int) -> Any:
        return _Early(super().start_receive(data, process), data)


@breaks(
    "COM-4",
    tells=r"the memory of rank \d's send of uint8\[\d+\] to rank \d, operation \d+( \(.*\))? changed",
    also=("FWD-1",),
)
class StampedInFlight(Link):
    """A message is numbered after it has been handed to the transport."""

    def start_send(self, data: Tensor, process: int) -> Any:
        work = super().start_send(data, process)
        if data.numel() > PADDING:
            data[PADDING] += 1  # here it does no harm, whether the message has left or not
        return work


@breaks(
    "COM-4",
    tells=r"the memory of rank \d's receive of uint8\[\d+\] from rank \d, operation \d+( \(.*\))? changed",
    also=("FWD-1",),
)
class ClearedInFlight(Link):
    """A receive buffer is cleared after the receive has been posted."""

    def start_receive(self, data: Tensor, process: int) -> Any:
        work = super().start_receive(data, process)
        data.zero_()
        return work


# -------------------------------------------------------------------- COM-6: independent of timing


@breaks("COM-6")
class StaleWhenLate(Link):
    """A late message is replaced by the one before it."""

    last: Any = None
    patience = 0.0015  # seconds

    def receive(self, *, source: int) -> Any:
        begun = time.monotonic()
        value = super().receive(source=source)
        late = time.monotonic() - begun > self.patience
        if late and self.last is not None and _alike(value, self.last):
            return self.last
        self.last = value
        return value


# a machine that is busy delays plain messages as long
@breaks("COM-6", also=("FWD-1",), status="error", tells=r"TimeoutError: rank \d is late")
class GivesUp(Link):
    """A rank gives up when a message takes longer than a step should."""

    def receive(self, *, source: int) -> Any:
        begun = time.monotonic()
        value = super().receive(source=source)
        if time.monotonic() - begun > 0.0015:
            raise TimeoutError(f"rank {self.process(source)} is late")
        return value


def _neighbours(placement: Sequence[int]) -> set[tuple[int, int]]:
    pairs = {(a, b) for a, b in itertools.pairwise(placement) if a != b}
    return pairs | {(b, a) for a, b in pairs}
