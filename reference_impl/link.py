"""Messages between the ranks of one pipeline group.

Positions in the pipeline are not process numbers: in a pipeline over processes (1, 3) position 1 is process
3, and torch sorts a group's processes, so a position is not even a rank of the group. Messages are therefore
addressed by process.

`Link.warm_up` makes all connections that a pipeline needs, in an order in which no ranks can wait in
a circle, whatever the device: backends that connect at the first message do so when both ends are there.

Sends return at once and are waited for at the end of the step; a receive waits. Between two ranks messages
arrive in the order in which they were sent, so no tags are needed. A rank that knows that a message will come
calls `expect`: gloo spares a round trip if the receive is there before the message.

The receiver must know how many bytes to wait for. The first *frame* of a message is as long as the shortest
message that this link carried between the two ranks before, or, for the link's first, as that of the link before
(`Lengths`), but at most 1024 bytes, since a step may have much smaller tensors than the one before; what does not fit
follows in a second frame, whose length stands in the first. Messages of one length thus take one frame each, except
for the very first, and for a long one that is its link's first; one that is shorter than all before is filled up, once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from . import wire


@dataclass(frozen=True)
class Failure:
    """A message that says that another rank failed."""

    text: str


_MOST_FILLED_UP = 1024
"""Bytes to which a link's first message may be filled up."""

Lengths = dict[tuple[str, int], int]
"""By direction (``to`` or ``from``) and position: the length in bytes of the first message of the last link."""


class Link:
    """One rank's end of the pipeline group; `ranks` are the processes of the pipeline, by position.

    A pipeline makes a link for every step, and keeps `lengths` from one to the next on all its ranks. Tensors that
    are cut over ranks lie on the last axis of this rank's `mesh`; every rank sends its part to its peer.
    """

    def __init__(
        self,
        group: ProcessGroup | None,
        *,
        ranks: Sequence[int],
        device: torch.device,
        lengths: Lengths | None = None,
        mesh: DeviceMesh | None = None,
    ) -> None:
        self.group, self._ranks, self.device, self.mesh = group, ranks, device, mesh
        self._under_way: list[tuple[Any, Tensor]] = []
        self._expected: dict[int, tuple[Any, Tensor] | None] = {}
        self._lengths: Lengths = {} if lengths is None else lengths
        self._shortest: Lengths = {}

    def warm_up(self, placement: Sequence[int], *, position: int) -> None:
        """Exchange one byte with the rank of every neighbouring stage; called on all ranks before anything else.

        A group's very first operation may thus be a message between two of its ranks. All ranks take the pairs of
        ranks in the same order, and the lower end of a pair sends first: the first pair that is not
        done has nothing to wait for.
        """
        pairs = {(min(a, b), max(a, b)) for a, b in itertools.pairwise(placement) if a != b}
        for low, high in sorted(pairs):
            if position not in (low, high):
                continue
            other = self.process(high if position == low else low)
            byte = torch.zeros(1, dtype=torch.uint8, device=self.device)
            first, then = self.start_send, self.start_receive
            for start in (first, then) if position == low else (then, first):
                start(byte, other).wait()

    def send(self, value: Any, *, to: int) -> None:
        """Send a tree of tensors and Nones to the rank at a position."""
        self._send(wire.pack(value, device=self.device), to)

    def send_failure(self, text: str, *, to: int) -> None:
        """Send, instead of a value, the message that a rank failed."""
        self._send(wire.pack_failure(text, device=self.device), to)

    def expect(self, *, source: int) -> None:
        """Post the receive of the next message of the rank at a position, one at a time; receive it later."""
        # On devices other than a CPU a receive that waits for its message may hold up the sends behind it.
        if self.device.type == "cpu":
            self._expected[source] = self._post(self._frame("from", source), source)

    def receive(self, *, source: int) -> Any:
        """Wait for the next message of the rank at a position: a tree of tensors and Nones, or `Failure`."""
        work, message = self._expected.pop(source, None) or self._post(self._frame("from", source), source)
        work.wait()
        begun = wire.beginning_of(message)
        kind, length = wire.prefix_of(begun)
        if length > message.numel():
            work, rest = self._post(length - message.numel(), source)
            work.wait()
            message = torch.cat([message, rest])
            begun = wire.beginning_of(message)
        self._note("from", source, length)
        if kind == wire.FAILURE:
            return Failure(wire.unpack_failure(message, begun))
        return wire.unpack(message, begun, mesh=self.mesh)

    def wait(self) -> None:
        """Wait until every message sent so far has left."""
        while self._under_way:
            work, _ = self._under_way.pop()
            work.wait()
        if self.device.type != "cpu":  # there a wait orders the stream, and the message is still under way
            torch.accelerator.current_stream(self.device).synchronize()

    def process(self, position: int) -> int:
        """The process at a position of the pipeline."""
        return self._ranks[position]

    def start_send(self, data: Tensor, process: int) -> Any:
        """Begin to send; the result has a ``wait``."""
        return dist.isend(data, process, group=self.group)

    def start_receive(self, data: Tensor, process: int) -> Any:
        """Begin to receive into `data`, which holds the message when the result's ``wait`` has ended."""
        return dist.irecv(data, process, group=self.group)

    def _send(self, message: Tensor, to: int) -> None:
        frame, length = self._frame("to", to), message.numel()
        if length < frame:
            message = torch.cat([message, message.new_zeros(frame - length)])
        for part in (message[:frame], message[frame:]) if length > frame else (message,):
            self._under_way.append((self.start_send(part, self.process(to)), part))
        self._note("to", to, length)

    def _post(self, length: int, source: int) -> tuple[Any, Tensor]:
        data = torch.empty(length, dtype=torch.uint8, device=self.device)
        return self.start_receive(data, self.process(source)), data

    def _frame(self, direction: str, position: int) -> int:
        key = direction, position
        return self._shortest.get(key, min(self._lengths.get(key, wire.PREFIX_BYTES), _MOST_FILLED_UP))

    def _note(self, direction: str, position: int, length: int) -> None:
        key = direction, position
        if key not in self._shortest:
            self._lengths[key] = length
        self._shortest[key] = min(length, self._shortest.get(key, length))
