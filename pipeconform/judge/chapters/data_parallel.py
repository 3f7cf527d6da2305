"""The judgements of chapter DPC."""

from __future__ import annotations

from pipeconform.case.focus import Focus
from pipeconform.judge import data_parallel, reductions, tensor_parallel
from pipeconform.judge.conditions import DELAY, SEVERAL_REPLICAS
from pipeconform.judge.judgement import TIMELINE, Judgement, about

__all__ = ["DATA_PARALLEL"]


DATA_PARALLEL: dict[str, Judgement] = {
    "DPC-1": about(
        Focus.REPLICAS,
        Focus.SHARDED,
        judge=data_parallel.gradients_are_the_mean,
        trains=True,
        costly=True,
        by_schedule=True,
        condition=SEVERAL_REPLICAS,
    ),
    "DPC-2": about(
        Focus.REPLICAS,
        Focus.SHARDED,
        judge=reductions.synchronised_once,
        trains=True,
        costly=True,
        by_schedule=True,
        observe=TIMELINE | {"reductions"},
        condition=SEVERAL_REPLICAS,
    ),
    "DPC-3": about(
        Focus.REPLICA_CONTENTS,
        judge=data_parallel.contents_are_right,
        trains=True,
        costly=True,
        condition=SEVERAL_REPLICAS,
    ),
    "DPC-4": about(
        Focus.REPLICA_OPTIONS,
        judge=data_parallel.options_change_nothing,
        trains=True,
        costly=True,
        condition=SEVERAL_REPLICAS,
    ),
    "DPC-5": about(
        Focus.REPLICA_TIES,
        judge=data_parallel.ties_stay_equal,
        trains=True,
        costly=True,
        condition=SEVERAL_REPLICAS,
    ),
    "DPC-6": about(
        Focus.REPLICA_DELAYS,
        judge=data_parallel.timing_changes_nothing,
        trains=True,
        costly=True,
        condition=DELAY,
    ),
    "DPC-7": about(Focus.TENSOR, judge=tensor_parallel.parts_are_right, trains=True, costly=True),
    "DPC-8": about(
        Focus.SHARDED,
        judge=data_parallel.shards_are_the_references,
        trains=True,
        any_schedule=True,
        condition=SEVERAL_REPLICAS,
    ),
    "DPC-9": about(
        Focus.REPLICA_NORMS,
        judge=tensor_parallel.norms_are_synchronised,
        trains=True,
        costly=True,
        condition=SEVERAL_REPLICAS,
    ),
}
