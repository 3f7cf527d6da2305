"""The third part of chapter DPW: sharded training over a grid of options."""

from __future__ import annotations

from types import MappingProxyType

from pipeconform.replication import judge_sharded as judge
from pipeconform.replication import sharded_grid as grid
from pipeconform.replication.judgement import WrapperJudgement, judged
from pipeconform.wrapper import WrapperFeature as F

__all__ = ["SHARDING_JUDGEMENTS"]

SHARDING_JUDGEMENTS = MappingProxyType(
    {
        "DPW-39": WrapperJudgement(
            cases=grid.pairwise_cases,
            every=grid.every_case,
            judge=judge.trains_like_ddp,
            needs=frozenset({F.SHARDS}),
        ),
        "DPW-40": judged(grid.offloaded_cases, F.SHARDS, F.OFFLOADS, by=judge.trains_like_ddp),
        "DPW-41": judged(grid.delayed_cases, F.SHARDS),
        "DPW-42": judged(grid.refused_cases, F.SHARDS, F.REFUSES, by=judge.refuses_combination),
    }
)
"""By requirement."""
