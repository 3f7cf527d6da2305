"""Further copies of the pipeline, each with data of its own, and how their stages are kept in step.

They are data, drawn, printed, shrunk and replayed with the case; `pipeconform.execute.replicas` makes the groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pipeconform.case.strict import Strict

__all__ = ["Replicas", "impossible_replicas"]


class Replicas(Strict, frozen=True, kw_only=True):
    """Replica 0 is the world's own pipeline; replica d runs on ``others[d - 1]``, in the order of its stages.

    The ranks at the same position of all pipelines ascend, so that a rank's number in a stage's data-parallel group is
    the number of its replica.
    """

    others: tuple[tuple[int, ...], ...]
    wrapper: Literal["ddp", "fully_shard"] = "ddp"
    bucket_views: bool = False
    """``ddp`` only: gradients are views of the buckets that are reduced."""
    static_graph: bool = False
    """``ddp`` only: every step uses the same parameters, in the same order."""
    find_unused: bool = False
    """``ddp`` only: some steps or replicas may not use every parameter."""
    hook: bool = False
    """``ddp`` only: a user's communication hook averages the buckets."""
    nested: bool = False
    """``fully_shard`` only: the blocks of a stage are sharded one by one, and then the stage."""
    mixed_precision: bool = False
    """``fully_shard`` only: stages compute in bfloat16, and gradients are added up and reduced in float32."""

    @property
    def has_options(self) -> bool:
        """Whether the wrapper ``ddp`` has any option set."""
        return self.bucket_views or self.static_graph or self.find_unused or self.hook


def impossible_replicas(
    replicas: Replicas, *, pipeline_ranks: Sequence[int], world_size: int
) -> Iterator[str]:
    """Yield the reasons why replicas are impossible."""
    pipelines = (tuple(pipeline_ranks), *replicas.others)
    everybody = [rank for pipeline in pipelines for rank in pipeline]
    name = "world.replicas.others"
    if len({len(pipeline) for pipeline in pipelines}) > 1:
        yield f"{name} {list(map(list, replicas.others))} must have as many ranks each as world.pipeline_ranks"
    elif any(list(place) != sorted(place) for place in zip(*pipelines, strict=True)):
        yield f"{name} {list(map(list, replicas.others))} must ascend from replica to replica at every place"
    if len(set(everybody)) != len(everybody) or not all(0 <= rank < world_size for rank in everybody):
        yield f"pipelines on ranks {list(map(list, pipelines))} must be distinct ranks below world.size {world_size}"
    if any(list(pipeline) != sorted(pipeline) for pipeline in replicas.others):
        yield f"{name} {list(map(list, replicas.others))} must be ascending, as a process group's ranks are"
    if replicas.wrapper != "ddp" and replicas.has_options:
        yield "world.replicas: bucket_views, static_graph, find_unused and hook are options of 'ddp'"
    if replicas.wrapper != "fully_shard" and (replicas.nested or replicas.mixed_precision):
        yield "world.replicas: nested and mixed_precision are options of 'fully_shard'"
    if replicas.static_graph and replicas.find_unused:
        yield "world.replicas cannot have both static_graph and find_unused"
