"""Sharded wrappers that refuse a hybrid over an odd number of ranks wrongly, or do not refuse it."""

from __future__ import annotations

import torch.distributed as dist

from ..errors import ReplicaError
from ..sharded import Sharded
from ..shards import Groups
from .fault import breaks_promise


@breaks_promise("DPW-42", tells="raised nothing")
class HybridAnyhow(Sharded):
    """A hybrid over an odd number of ranks is not refused, but silently sharded over all of them."""

    def _groups(self) -> Groups:
        try:
            return super()._groups()
        except ReplicaError:
            return Groups(over=dist.group.WORLD, across=None)


@breaks_promise("DPW-42", tells="in its message")
class HybridUnexplained(Sharded):
    """A hybrid over an odd number of ranks is refused without saying why."""

    def _groups(self) -> Groups:
        try:
            return super()._groups()
        except ReplicaError:
            raise ReplicaError("cannot be sharded like that") from None


@breaks_promise("DPW-42", status="hung", tells="progress")
class HybridRefusedByOne(Sharded):
    """The last rank alone refuses a hybrid over an odd number of ranks."""

    def _groups(self) -> Groups:
        try:
            return super()._groups()
        except ReplicaError:
            if dist.get_rank() == dist.get_world_size() - 1:
                raise
            return Groups(over=None, across=None)
