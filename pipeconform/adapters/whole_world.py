"""Refuses worlds that an engine, which makes its groups by itself, cannot be told of."""

from __future__ import annotations

from pipeconform.adapter import Ranks
from pipeconform.errors import Unsupported

__all__ = ["require_whole_world"]


def require_whole_world(ranks: Ranks) -> None:
    """Raise `Unsupported` where the pipeline, with its replicas, is not the whole world."""
    used = len(ranks.pipeline_ranks) * ranks.num_replicas
    if used != ranks.world_size:
        raise Unsupported(f"pipelines on {used} ranks of {ranks.world_size}")
