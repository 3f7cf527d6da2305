"""Rules for sharded stages: parameters are gathered when used, and gradients are reduced once, at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from pipeconform.schedule.actions import COMPUTE, SHARDING, Kind
from pipeconform.schedule.dependencies import Index
from pipeconform.schedule.rules import at
from pipeconform.schedule.table import Table, rows_of
from pipeconform.schedule.violation import Rule, Violation


def sharding_kept(index: Index) -> Iterator[Violation]:
    """Parameters are gathered, used and freed in turn, gradients reduced at most once, after the last backward.

    A wait comes after the reduction that it is for, and where reductions are waited for, each is, once.

    A stage without sharding actions is not judged.
    """
    table = index.table
    sharding = np.flatnonzero(rows_of(table, SHARDING))
    if not sharding.size:
        return
    gathers = sharding[np.isin(table.kinds[sharding], [Kind.UNSHARD, Kind.RESHARD])]
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
    reductions = _rows_by_stage(table, Kind.REDUCE_GRAD)
    yield from _reduced_once(index, reductions)
    yield from _waited_for(index, reductions)


def _rows_by_stage(table: Table, kind: Kind) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for row in np.flatnonzero(rows_of(table, [kind])).tolist():
        rows.setdefault(int(table.stages[row]), []).append(row)
    return rows


def _reduced_once(index: Index, reductions: Mapping[int, list[int]]) -> Iterator[Violation]:
    table = index.table
    for stage, (first, *others) in reductions.items():
        after = np.arange(first + 1, int(table.offsets[index.ranks[first] + 1]))
        later = after[(table.stages[after] == stage) & np.isin(table.kinds[after], [Kind.B, Kind.W])]
        if later.size:
            message = f"{at(index, first)} comes before {at(index, int(later[0]))}, whose gradient it misses"
            yield Violation(Rule.SHARDING, message, (first, int(later[0])))
        for row in others:
            message = f"{at(index, row)}: reduced already by {at(index, first)}"
            yield Violation(Rule.SHARDING, message, (row, first))


def _waited_for(index: Index, begun: Mapping[int, list[int]]) -> Iterator[Violation]:
    ended = _rows_by_stage(index.table, Kind.WAIT_REDUCE_GRAD)
    for stage, (first, *others) in ended.items():
        mine = [row for row in begun.get(stage, ()) if row < first and index.ranks[row] == index.ranks[first]]
        if not mine:
            message = f"{at(index, first)}: no reduction of the stage has been begun before"
            yield Violation(Rule.SHARDING, message, (first,))
        for row in others:
            message = f"{at(index, row)}: waited for already by {at(index, first)}"
            yield Violation(Rule.SHARDING, message, (row, first))
    for stage, (first, *_) in begun.items():
        if ended and stage not in ended:
            message = f"{at(index, first)}: nothing waits for it, but other reductions are waited for"
            yield Violation(Rule.SHARDING, message, (first,))
