"""Uneven inputs: a rank that has no batches left takes part in the others' collectives with zeros.

Before every forward each rank says in one small message whether it is there, and what it is going to synchronise.
A rank without batches answers "absent" until all do, and meanwhile takes part in what the others say.
Buffers come from the lowest rank present; at the end all ranks get its parameters and buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from .errors import ReplicaError

__all__ = ["BUFFERS", "GRADIENTS", "Attendance"]

_ABSENT, _PRESENT, BUFFERS, GRADIENTS = 0, 1, 2, 4


class Attendance:
    """Which ranks take part in a step; outside `joining` all do, and nothing is sent."""

    def __init__(self, group: ProcessGroup, module: nn.Module) -> None:
        self._group, self._size, self._module = group, dist.get_world_size(group), module
        self._asks = self._initial = self._raises = False
        self.present, self.source = self._size, 0
        """How many ranks have a batch in this step, and the lowest of them."""

    def announce(self, *, buffers: bool, gradients: bool) -> None:
        """Tell the others that this rank has a batch, and what it is going to synchronise.

        Raises:
            ReplicaError: Another rank has none left, and that was to be an error.
        """
        if self._asks:
            self._gather(_PRESENT + BUFFERS * buffers + GRADIENTS * gradients)

    def correction(self) -> float:
        """The factor for the sum over all ranks, divided by their number."""
        return 1.0 if not self._asks or self._initial else self._size / self.present

    @contextmanager
    def joining(
        self, stand_in: Callable[[int], None], *, divide_by_initial: bool, raise_early: bool
    ) -> Iterator[None]:
        """Surround a loop over this rank's batches; ``stand_in(what)`` is called for every step it misses."""
        self._asks, self._initial, self._raises = True, divide_by_initial, raise_early
        try:
            yield
            while told := self._gather(_ABSENT):
                stand_in(told)
        finally:
            self._asks, self.present = False, self._size

    def _gather(self, own: int) -> int:
        """Exchange what all ranks are going to do, and return the union; 0 if no rank has a batch."""
        flags = torch.zeros(self._size, dtype=torch.int32, device=next(self._module.parameters()).device)
        flags[dist.get_rank(self._group)] = own
        dist.all_reduce(flags, group=self._group)
        told = flags.tolist()
        there = [rank for rank, flag in enumerate(told) if flag]
        if not there:
            return 0
        self.present, self.source = len(there), there[0]
        if self._raises and len(there) < self._size:
            gone = ", ".join(str(rank) for rank in range(self._size) if rank not in there)
            raise ReplicaError(f"rank {gone} has no batches left, and uneven inputs were to be an error")
        return int(max(told))
