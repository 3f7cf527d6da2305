"""The plan's part on replicas, and the communication hook that it may contain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from pipeconform.adapter import DataParallel
from pipeconform.case.case import Case

__all__ = ["AveragingHook", "data_parallel_of"]


class AveragingHook:
    """A communication hook as a user writes it, which counts the elements that it receives, by stage.

    It first calls `before` with the stage, which may raise.
    """

    def __init__(self, before: Callable[[int], None]) -> None:
        self._before = before
        self._given: Counter[int] = Counter()

    # torch refuses annotations that are strings
    def average(self, state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        """Average one bucket over the group."""
        stage, group = state
        self._before(stage)
        buffer = bucket.buffer()
        self._given[stage] += buffer.numel()
        buffer.div_(group.size())
        future = dist.all_reduce(buffer, group=group, async_op=True).get_future()
        return future.then(_first)

    def take(self) -> dict[int, int]:
        """Elements by stage since the last call."""
        taken = dict(self._given)
        self._given.clear()
        return taken


def _first(future: torch.futures.Future[Any]) -> torch.Tensor:
    tensor: torch.Tensor = future.value()[0]
    return tensor


def data_parallel_of(case: Case, hook: AveragingHook | None) -> DataParallel | None:
    """The plan's `DataParallel`; None if there is one pipeline only."""
    replicas = case.world.replicas
    if replicas is None:
        return None
    return DataParallel(
        wrapper=replicas.wrapper,
        bucket_views=replicas.bucket_views,
        static_graph=replicas.static_graph,
        find_unused=replicas.find_unused,
        hook=hook.average if replicas.hook and hook is not None else None,
        nested=replicas.nested,
        mixed_precision=replicas.mixed_precision,
    )
