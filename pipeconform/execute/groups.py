"""The process groups of a case, and how they end."""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from pipeconform.case.case import Case
from pipeconform.observe.observation import WAITS_FOR_OTHERS
from pipeconform.ranks import examiner
from pipeconform.ranks.devices import backends_in
from pipeconform.ranks.rank import RankContext
from pipeconform.ranks.recording.recorder import our_own

__all__ = [
    "Groups",
    "Retired",
    "ends_after_errors",
    "groups_of",
    "is_there",
    "lasting_groups",
    "release_earlier",
]


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The groups that a rank belongs to."""

    pipeline: dist.ProcessGroup | None = None
    """The pipeline's group; None for a bystander, and in a single-process world."""
    replicas: Mapping[int, dist.ProcessGroup] = field(default_factory=dict)
    """The data-parallel group of each owned stage; empty if there is one pipeline only."""
    mesh: DeviceMesh | None = None
    """If stages are cut over ranks; see `Ranks.mesh`."""
    parts: tuple[dist.ProcessGroup, ...] = ()
    """The groups of its axes."""

    @property
    def all(self) -> tuple[dist.ProcessGroup, ...]:
        """All of these groups."""
        own = () if self.pipeline is None else (self.pipeline,)
        return tuple(dict.fromkeys((*own, *self.replicas.values(), *self.parts)))


class Retired:
    """Process groups that end during the next case instead of at the end of their own.

    gloo's threads check for work every ten milliseconds, and ending a group waits for each of them: 20 to
    30 ms in which nothing happens, at the end of every case. A thread of its own releases a retired group
    once the next case has begun. It finishes before the case after that, so that a group that cannot end still
    shows as a stuck rank.
    """

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._thread: threading.Thread | None = None

    def add(self, group: Any) -> None:
        """Keep `group` until the next `release`, when nothing else refers to it."""
        self._kept.append(group)

    def release(self) -> None:
        """Release the groups added, in the background; the ones released before have ended when this returns."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._kept:
            kept, self._kept = self._kept, []
            self._thread = threading.Thread(target=kept.clear, daemon=True)
            self._thread.start()


def lasting_groups() -> frozenset[str]:
    """The names of the groups that outlive a case, the default group among them."""
    return frozenset(dist.distributed_c10d._world.pg_names.values()) if dist.is_initialized() else frozenset()


def release_earlier() -> None:
    """Release what earlier cases of this process have left connected."""
    while _lingering():
        _end_after_error(_lingering().pop())
    _retired().release()


@functools.cache
def _lingering() -> list[dist.ProcessGroup]:
    """Groups of failed cases, which stay connected until this process's next case."""
    return []


@functools.cache
def _retired() -> Retired:
    """Groups of cases that ended well; see `Retired`."""
    return Retired()


@contextmanager
def groups_of(
    case: Case, context: RankContext, *, distributed: bool, lingers: bool, owners: Sequence[int] = ()
) -> Iterator[Groups]:
    """New groups for every case: no message of an earlier case can reach them, and the engine is their first user.

    `owners` is the pipeline rank of each stage; it is needed if there are replicas. `lingers`
    keeps the groups connected after an error: a closing socket would wake up the ranks that wait for this one.
    """
    if not distributed:
        yield Groups()
        return
    groups = _new_groups(case, context, owners)
    if _with_gloo():
        # gloo connects here, and a rank that refuses the case at once would break connections that others
        # still make; the barrier is in the world's group, so that the engine remains the first user
        with our_own(), examiner.waiting_for_others(WAITS_FOR_OTHERS):
            dist.barrier()
    try:
        yield groups
    except BaseException:
        if lingers:
            _lingering().extend(groups.all)
        else:
            for group in groups.all:
                _end_after_error(group)
        raise
    for group in groups.all:
        _destroy_if_there(group)
    if _with_gloo():
        for group in groups.all:
            _retired().add(group)


def _new_groups(case: Case, context: RankContext, owners: Sequence[int]) -> Groups:
    """Every rank of the world makes all groups, in the same order, and keeps its own."""
    pipelines, rank = case.world.pipelines, context.rank
    found = [(members, dist.new_group(list(members))) for members in pipelines]
    pipeline = next((group for members, group in found if rank in members), None)
    if case.world.tensor is not None:
        return _meshed(case, context, owners, pipeline)
    replicas = {}
    for s, owner in enumerate(owners if case.world.replicas is not None else ()):
        members = [ranks[owner] for ranks in pipelines]
        group = dist.new_group(members)
        if rank in members:
            replicas[s] = group
    return Groups(pipeline=pipeline, replicas=replicas)


def _meshed(
    case: Case, context: RankContext, owners: Sequence[int], pipeline: dist.ProcessGroup | None
) -> Groups:
    """The groups if stages are cut over ranks: a mesh of replicas and parts at every place of the pipelines."""
    world, rank = case.world, context.rank
    num, parts = world.num_replicas, world.num_tensor_ranks
    mesh, replicated, axes = None, None, tuple[dist.ProcessGroup, ...]()
    name = _name(context)
    for place in range(case.num_ranks):
        # one row per replica, in it one rank per part
        rows = [[world.pipelines[t * num + d][place] for t in range(parts)] for d in range(num)]
        columns = [list(column) for column in zip(*rows, strict=True)] if num > 1 else []
        made = {tuple(members): dist.new_group(members) for members in (*columns, *rows)}
        if not any(rank in row for row in rows):
            continue
        axes = tuple(group for members, group in made.items() if rank in members)
        if num > 1:
            replicated = axes[0]
        mesh = DeviceMesh.from_group(
            list(axes) if num > 1 else axes[0],
            torch.device(context.device).type,
            mesh=rows if num > 1 else rows[0],
            mesh_dim_names=(f"replicas_{name}", f"parts_{name}")[-len(axes) :],
        )
    own = {s for s, owner in enumerate(owners) if any(ranks[owner] == rank for ranks in world.pipelines)}
    return Groups(
        pipeline=pipeline,
        replicas={} if replicated is None else dict.fromkeys(sorted(own), replicated),
        mesh=mesh,
        parts=axes,
    )


def _name(context: RankContext) -> str:
    """A name that is equal on all ranks and never reused: torch's caches confuse meshes of equal names and ranks."""
    token = torch.tensor([secrets.randbits(48)], device=context.device)
    dist.broadcast(token, src=0)
    return f"{int(token):012x}"


def is_there(group: dist.ProcessGroup) -> bool:
    """Whether the group still exists."""
    return group in dist.distributed_c10d._world.pg_map


def _with_gloo() -> bool:
    """Whether gloo moves anything here, if only the CPU's tensors."""
    return "gloo" in backends_in(dist.get_backend())


def ends_after_errors() -> bool:
    """Whether a group ends although another rank has not done its part: other backends wait for what is pending."""
    return backends_in(dist.get_backend()) == {"gloo"}


def _end_after_error(group: dist.ProcessGroup) -> None:
    """End a group without waiting for what was given to it."""
    if ends_after_errors():
        _destroy_if_there(group)
    elif is_there(group):
        dist.distributed_c10d._abort_process_group(group)  # private; the public call would wait


def _destroy_if_there(group: dist.ProcessGroup) -> None:
    """Destroy a group; an engine may have done so already, which is the business of the requirement about closing."""
    if is_there(group):
        dist.destroy_process_group(group)
