"""Faults of communication that mostly leave values alone: what is sent, to whom, and how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeconform.adapter import Plan
from pipeconform.schedule import Action

from .. import wire as formats
from ..adapter import ReferencePipeline
from ..link import Link
from ..runtime import Step, Yield
from .fault import breaks

PADDING = 255  # the last byte before a message's tensors, which is never read


@dataclass(frozen=True)
class WatchedWork:
    """A work object whose wait does something else, too."""

    inner: Any

    def wait(self) -> None:
        """Wait as the transport does."""
        self.inner.wait()


class _LastStep(Step):
    """Does something on the first position when a step has ended."""

    def run(self, actions: Sequence[Action]) -> Yield:
        done = super().run(actions)
        if self.position == 0 and len(set(self.placement)) > 1:
            self.end()
        return done

    def end(self) -> None:
        """What the step does at its end."""


# ------------------------------------------------------------------------- COM-1: matched messages


@breaks(
    "COM-1",
    tells=r"rank \d's send of float32\[1\] to rank \d with tag 1, operation \d+ is never received by rank \d",
    or_hangs=True,
)
class LeftoverSend(_LastStep):
    """After every step the first rank sends a byte that no rank receives."""

    def end(self) -> None:
        dist.isend(
            torch.zeros(1, device=self.link.device), self.link.process(1), group=self.link.group, tag=1
        )


@breaks(
    "COM-1",
    tells=r"no rank sends what rank \d's receive of float32\[1\] from rank \d with tag 1, operation \d+ would",
    or_hangs=True,
)
class LeftoverReceive(_LastStep):
    """After every step the first rank posts a receive for which nothing comes."""

    def end(self) -> None:
        dist.irecv(
            torch.zeros(1, device=self.link.device), self.link.process(1), group=self.link.group, tag=1
        )


@breaks("COM-1", tells=r"send of int8\[\d+\] .* is taken by rank \d's receive of uint8\[\d+\]")
class DtypeReinterpreted(Link):
    """Bytes are sent as one dtype and received as another."""

    def start_send(self, data: Tensor, process: int) -> Any:
        return super().start_send(data.view(torch.int8), process)


@breaks("COM-1", tells=r"send of uint8\[1, (\d+)\] .* is taken by rank \d's receive of uint8\[\1\]")
class ShapeForgotten(Link):
    """A message is sent with another number of dimensions than it is received with."""

    def start_send(self, data: Tensor, process: int) -> Any:
        return super().start_send(data.reshape(1, -1), process)


@dataclass(frozen=True)
class _Cut(WatchedWork):
    longer: Tensor
    data: Tensor

    def wait(self) -> None:
        super().wait()
        self.data.copy_(self.longer[: self.data.numel()])


@breaks("COM-1", tells=r"send of uint8\[16\] .* is taken by rank \d's receive of uint8\[24\]", or_hangs=True)
class LongerReceive(Link):
    """Receives are posted for more bytes than are sent."""

    def start_receive(self, data: Tensor, process: int) -> Any:
        longer = data.new_zeros(data.numel() + 8)
        return _Cut(super().start_receive(longer, process), longer, data)


# -------------------------------------------------------------------------- COM-2: the given group


@breaks("COM-2", tells=r"rank \d uses the default group for its (send|receive) of uint8\[1\]")
class DefaultGroup(ReferencePipeline):
    """The plan's group is forgotten: messages travel on the default group."""

    def make_link(self) -> Link:
        link = super().make_link()
        link.group = None
        return link


@breaks(
    "COM-2",
    tells=r"rank \d uses a group of ranks \[0, 1, 2\] for its .*; the pipeline's ranks are \[\d, \d\]",
)
class WiderGroup(ReferencePipeline):
    """The pipeline makes a group of its own, of all processes."""

    def __init__(self, plan: Plan) -> None:
        self.wide = dist.new_group() if dist.is_initialized() else None  # every rank is here
        super().__init__(plan)

    def make_link(self) -> Link:
        link = super().make_link()
        link.group = self.wide
        return link


@breaks("COM-2", status="error", tells=r"rank \d raised RuntimeError")
class ProcessTakenForGroupRank(Link):
    """The number of a process is used as a rank of the group, which is right only if the group is the world."""

    def start_send(self, data: Tensor, process: int) -> Any:
        last = dist.get_world_size(self.group) - 1
        return dist.isend(data, group=self.group, group_dst=min(process, last))


@breaks("COM-2", tells=r"rank \d uses the default group for its allreduce")
class BystanderSpeaks(ReferencePipeline):
    """All ranks, bystanders too, communicate when a pipeline has been built."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        if len(plan.ranks.pipeline_ranks) < plan.ranks.world_size:
            dist.all_reduce(torch.zeros(1, device=plan.ranks.device))


# ------------------------------------------------------------------- COM-5: no more than is needed


@breaks(
    "COM-5",
    tells=r"rank \d sends rank \d \d+ bytes; what crosses .* has \d+ bytes in (1 tensor|\d+ tensors), which",
)
class Padded(Link):
    """Every message is padded to the largest size that is allowed."""

    def send(self, value: Any, *, to: int) -> None:
        message = formats.pack(value, device=self.device)
        padded = torch.cat([message, message.new_zeros(-message.numel() % 65536)])
        length = padded.numel().to_bytes(8, "little")
        padded[8:16] = torch.frombuffer(bytearray(length), dtype=torch.uint8)
        self._send(padded, to)


@breaks(
    "COM-5",
    tells=r"rank \d sends rank \d \d+ bytes; what crosses .* has \d+ bytes in (1 tensor|\d+ tensors), which",
)
class SentTwice(Link):
    """Every boundary is sent twice; the second copy is thrown away."""

    def send(self, value: Any, *, to: int) -> None:
        super().send(value, to=to)
        super().send(value, to=to)

    def receive(self, *, source: int) -> Any:
        value = super().receive(source=source)
        super().receive(source=source)
        return value


@breaks("COM-5", status="error", tells=r"rank \d raised RuntimeError", also=("FWD-1",))
class SentToItself(_LastStep):
    """A rank hands something over to itself by a message."""

    def end(self) -> None:
        group = self.link.group
        assert group is not None
        kept = torch.zeros(1, device=self.link.device)
        works = [
            group.send([kept], group.rank(), 0),
            group.recv([torch.zeros(1, device=self.link.device)], group.rank(), 0),
        ]
        for work in works:
            work.wait()
