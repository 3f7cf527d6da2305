"""torch's pipelining, without the waits for what it gave a backend as a batch of sends and receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.pipelining import schedules

from pipeconform.adapters.torch_pipelining import TorchPipelining as Unwaited

__all__ = ["Unwaited"]

_WAIT: Callable[[list[dist.Work]], None] = schedules._wait_batch_p2p
_BATCH = dist.batch_isend_irecv
_batches: list[Any] = []  # kept, so that no other list takes a place in memory


def _batched(operations: list[dist.P2POp]) -> list[dist.Work]:
    works = _BATCH(operations)
    _batches.append(works)
    return works


def _wait(works: list[dist.Work]) -> None:
    if not any(works is one for one in _batches):
        _WAIT(works)


dist.batch_isend_irecv = _batched
schedules._wait_batch_p2p = _wait
