"""The groups of ranks that average a parameter's gradient."""

from __future__ import annotations

from pipeconform.case.wrapper_case import WrapperCase
from pipeconform.sharding import EXPERT

__all__ = ["group_of"]


def group_of(case: WrapperCase, name: str, rank: int) -> tuple[int, ...]:
    """The ranks with which `rank` averages a parameter: all, none but itself, or those of the same expert."""
    if name in case.options.ignored:
        return (rank,)
    sharding = case.options.sharding
    if sharding is not None and sharding.expert_groups and name.startswith(f"{EXPERT}."):
        return next(group for group in sharding.expert_groups if rank in group)
    return tuple(range(case.ranks))
