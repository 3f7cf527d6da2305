"""Counts what stays behind after more steps, and after building and closing again and again.

Counts, not bytes: tensors that Python can reach, threads, open descriptors, process groups. Each count stays constant
in an implementation that cleans up, whatever the allocator does.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist

from pipeconform.execute.groups import is_there
from pipeconform.observe.observation import NUM_ROUNDS, WARM_UP, Census, LivedOn

__all__ = ["live_on", "take_census"]


class _Closable(Protocol):
    def close(self) -> None: ...


P = TypeVar("P", bound=_Closable)


def take_census() -> Census:
    """Count what this process holds, after a garbage collection."""
    gc.collect()
    tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
    groups = len(dist.distributed_c10d._world.pg_map) if dist.is_initialized() else 0
    return Census(
        tensors=tensors,
        threads=len(os.listdir("/proc/self/task")),
        descriptors=len(os.listdir("/proc/self/fd")),
        groups=groups,
    )


def live_on(
    pipeline: P,
    *,
    build: Callable[[], P] | None,
    run: Callable[[P], None],
    group: dist.ProcessGroup | None,
    device: torch.device,
) -> LivedOn:
    """Run more steps, close twice, use the group, then build, run and close in rounds; collective.

    `build` makes a pipeline like `pipeline`, which is closed here; None if a process can build only one. `run`
    runs one step and clears its gradients. The group is used on `device`: its backend may have no other tensors.
    """
    steps = _flat(lambda: run(pipeline))
    error = _closing_error(pipeline)
    works = _works(group, device)
    rounds: tuple[Census, ...] = ()
    if build is not None and works:

        def once() -> None:
            other = build()
            run(other)
            other.close()

        rounds = _flat(once)
    return LivedOn(steps=steps, rounds=rounds, closing_error=error, group_works=works)


def _flat(once: Callable[[], None]) -> tuple[Census, ...]:
    """The counts after the warm-up and after all rounds."""
    found = []
    for index in range(NUM_ROUNDS):
        once()
        if index + 1 in (WARM_UP, NUM_ROUNDS):
            found.append(take_census())
    return tuple(found)


def _closing_error(pipeline: _Closable) -> str | None:
    """Close twice; return what the second close raised."""
    pipeline.close()
    try:
        pipeline.close()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _works(group: dist.ProcessGroup | None, device: torch.device) -> bool:
    """Whether the group is still there, and a sum over its ranks is right."""
    if group is None:
        return True
    if not is_there(group):
        return False
    total = torch.ones(1, device=device)
    dist.all_reduce(total, group=group)
    return int(total) == dist.get_world_size(group)
