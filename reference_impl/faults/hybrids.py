"""Sharded wrappers that refuse a hybrid of ranks that are no pairs wrongly, or do not refuse it."""

from __future__ import annotations

import torch.distributed as dist

from ..errors import ReplicaError
from ..sharded import Sharded
from ..shards import Groups
from .fault import breaks_promise


@breaks_promise("DPW-42", tells="raised nothing")
class HybridAnyhow(Sharded):
    """What is refused by contract is let pass.

    A hybrid of ranks that are no pairs is quietly sharded over all.
    """

    def _groups(self) -> Groups:
        try:
            return super()._groups()
        except ReplicaError:
            return Groups(over=dist.group.WORLD, across=None)


@breaks_promise("DPW-42", tells="in its message")
class HybridUnexplained(Sharded):
    """The refusal does not say why.

    A hybrid of ranks that are no pairs is refused without saying why.
    """

    def _groups(self) -> Groups:
        try:
            return super()._groups()
        except ReplicaError:
            raise ReplicaError("cannot be sharded like that") from None


@breaks_promise("DPW-42", status="hung", tells="progress")
class HybridRefusedByOne(Sharded):
    """One rank refuses, the others go on.

    The last rank alone refuses a hybrid of ranks that are no pairs.
    """

    def _groups(self) -> Groups:
        try:
            return super()._groups()
        except ReplicaError:
            if dist.get_rank() == dist.get_world_size() - 1:
                raise
            return Groups(over=None, across=None)
