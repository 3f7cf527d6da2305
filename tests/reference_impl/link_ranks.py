"""What a rank does in the tests of messages: rank 0 sends, rank 1 receives."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from pipeconform.reference_impl import link
from pipeconform.reference_impl.link import Link
from reference_ranks import new_group

from pipeconform.ranks.rank import RankContext


def _values(sizes: list[int]) -> list[torch.Tensor]:
    return [torch.arange(size) for size in sizes]


def exchange(context: RankContext, payload: bytes) -> bytes:
    """What rank 1 received, as JSON; the payload has a list of sizes for every link."""
    group, lengths, device = new_group([0, 1]), {}, torch.device("cpu")
    received = []
    for sizes in json.loads(payload):
        end = Link(group, ranks=(0, 1), device=device, lengths=lengths)
        if context.rank == 0:
            for value in _values(sizes):
                end.send(value, to=1)
            end.wait()
        else:
            for position in range(len(sizes)):
                if position % 2:
                    end.expect(source=0)
                received.append(end.receive(source=0).tolist())
    return json.dumps(received).encode()


class _Watched:
    """torch.distributed, and the lengths of what passes through it."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def isend(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.lengths.append(tensor.numel())
        return dist.isend(tensor, *args, **kwargs)

    def irecv(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        self.lengths.append(tensor.numel())
        return dist.irecv(tensor, *args, **kwargs)


def frames(context: RankContext, payload: bytes) -> bytes:
    """Lengths of the frames that this rank sent or received, in bytes, as JSON."""
    watched = _Watched()
    link.dist = watched
    try:
        exchange(context, payload)
    finally:
        link.dist = dist
    return json.dumps(watched.lengths).encode()
