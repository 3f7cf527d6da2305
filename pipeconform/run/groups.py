"""The process group of a case, and what becomes of it afterwards."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from pipeconform.case.case import Case
from pipeconform.run.rank import RankContext
from pipeconform.run.retired import Retired

__all__ = ["pipeline_group", "release_earlier"]


def release_earlier() -> None:
    """Let go of what this process's earlier cases have left connected."""
    while _lingering():
        dist.destroy_process_group(_lingering().pop())
    _retired().release()


@functools.cache
def _lingering() -> list[dist.ProcessGroup]:
    """Groups of failed cases that stay connected until this process's next case."""
    return []


@functools.cache
def _retired() -> Retired:
    """Groups of cases that ended well; see `Retired`."""
    return Retired()


@contextmanager
def pipeline_group(
    case: Case, context: RankContext, *, distributed: bool, lingers: bool
) -> Iterator[dist.ProcessGroup | None]:
    """A new group for every case: no message of an earlier one can reach it, and its first use is the engine's.

    `lingers` keeps it connected after an error: a closing socket would wake up whoever waits for this rank.
    """
    if not distributed:
        yield None
        return
    group = dist.new_group(list(case.world.pipeline_ranks))
    if dist.get_backend() == "gloo":
        # gloo connects here, and a rank that refuses the case at once would tear down what others still
        # connect to; the barrier is the world's, so that the group's first use remains the engine's
        dist.barrier()
    member = context.rank in case.world.pipeline_ranks
    if not member:
        yield None
        return
    try:
        yield group
    except BaseException:
        if lingers:
            _lingering().append(group)
        else:
            dist.destroy_process_group(group)
        raise
    dist.destroy_process_group(group)
    if dist.get_backend() == "gloo":
        _retired().add(group)
