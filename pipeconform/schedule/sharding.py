"""Rules for sharded stages: parameters are gathered when used, and gradients are reduced once, at the end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeconform.schedule.actions import COMPUTE, SHARDING, Kind
from pipeconform.schedule.dependencies import Index
from pipeconform.schedule.rules import at
from pipeconform.schedule.table import rows_of
from pipeconform.schedule.violation import Rule, Violation


def sharding_kept(index: Index) -> Iterator[Violation]:
    """Parameters are gathered, used and freed in turn, and reduced at most once, after the last backward.

    A stage without sharding actions is not judged.
    """
    table = index.table
    sharding = np.flatnonzero(rows_of(table, SHARDING))
    if not sharding.size:
        return
    gathers = sharding[table.kinds[sharding] != Kind.REDUCE_GRAD]
    gathered_at: dict[int, int] = {}
    sharded = set(table.stages[gathers].tolist())
    for row in np.flatnonzero(rows_of(table, COMPUTE | {Kind.UNSHARD, Kind.RESHARD})).tolist():
        stage, kind = int(table.stages[row]), Kind(int(table.kinds[row]))
        if stage not in sharded:
            continue
        if kind is Kind.UNSHARD:
            if stage in gathered_at:
                message = f"{at(index, row)}: gathered already by {at(index, gathered_at[stage])}"
                yield Violation(Rule.SHARDING, message, (row, gathered_at[stage]))
            gathered_at[stage] = row
        elif stage not in gathered_at:
            message = f"{at(index, row)}: the stage's parameters are not gathered at this point"
            yield Violation(Rule.SHARDING, message, (row,))
        elif kind is Kind.RESHARD:
            del gathered_at[stage]
    for row in gathered_at.values():
        yield Violation(Rule.SHARDING, f"{at(index, row)}: never freed again", (row,))
    yield from _reductions(index)


def _reductions(index: Index) -> Iterator[Violation]:
    table = index.table
    reduced: dict[int, int] = {}
    for row in np.flatnonzero(rows_of(table, [Kind.REDUCE_GRAD])).tolist():
        stage = int(table.stages[row])
        if stage in reduced:
            message = f"{at(index, row)}: reduced already by {at(index, reduced[stage])}"
            yield Violation(Rule.SHARDING, message, (row, reduced[stage]))
            continue
        reduced[stage] = row
        stop = int(table.offsets[index.ranks[row] + 1])
        after = np.arange(row + 1, stop)
        later = after[(table.stages[after] == stage) & np.isin(table.kinds[after], [Kind.B, Kind.W])]
        if later.size:
            message = f"{at(index, row)} comes before {at(index, int(later[0]))}, whose gradient it misses"
            yield Violation(Rule.SHARDING, message, (row, int(later[0])))
