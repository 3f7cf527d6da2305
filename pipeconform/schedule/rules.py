"""The rules that need no simulation: each is a function from an index to its violations.

Every function yields one violation per finding, the worst first where they can be ordered; the verifier cuts long
lists. In messages, ranks, stages and microbatches count from 0; positions are row numbers within the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pipeconform.schedule.actions import COMPUTE, WAITED_FOR, Kind
from pipeconform.schedule.dependencies import Index, Rows
from pipeconform.schedule.memory import in_flight_after
from pipeconform.schedule.table import OVERLAP_FIRST, ranks_of_rows, rows_of
from pipeconform.schedule.violation import Rule, Violation

Check = Callable[[Index], Iterator[Violation]]


def at(index: Index, row: int) -> str:
    """A row as text: ``2F0 (rank 1, position 7)``."""
    rank = int(index.ranks[row])
    return f"{index.table.action_at(row)} (rank {rank}, position {row - int(index.table.offsets[rank])})"


def numbers_in_range(index: Index) -> Iterator[Violation]:
    """No row names a stage or microbatch that the table does not have."""
    table = index.table
    for row in np.flatnonzero(table.stages >= table.num_stages).tolist():
        message = f"{at(index, row)}: there is no such stage, they are 0 … {table.num_stages - 1}"
        yield Violation(Rule.RANGE, message, (row,))
    for row in np.flatnonzero(table.microbatches >= table.num_microbatches).tolist():
        message = f"{at(index, row)}: there is no such microbatch, they are 0 … {table.num_microbatches - 1}"
        yield Violation(Rule.RANGE, message, (row,))


def placement_kept(index: Index) -> Iterator[Violation]:
    """Every row is on the rank that owns its stage."""
    table = index.table
    valid = np.flatnonzero(table.stages < table.num_stages)
    owner = np.asarray(table.placement)[table.stages[valid]]
    for row in valid[owner != index.ranks[valid]].tolist():
        owned = table.placement[int(table.stages[row])]
        yield Violation(
            Rule.PLACEMENT, f"{at(index, row)}: the placement gives this stage to rank {owned}", (row,)
        )


def counts(index: Index, kind: Kind) -> npt.NDArray[np.int64]:
    """How often each (stage, microbatch) has a kind, shape (stages, microbatches)."""
    table = index.table
    rows = np.flatnonzero((table.kinds == kind) & index.in_range)
    key = table.stages[rows].astype(np.int64) * table.num_microbatches + table.microbatches[rows]
    size = table.num_stages * table.num_microbatches
    return np.bincount(key, minlength=size).reshape(table.num_stages, -1)


def _each(mask: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    for stage, microbatch in np.argwhere(mask):
        yield int(stage), int(microbatch)


def computations_complete(index: Index, *, forward_only: bool) -> Iterator[Violation]:
    """Each (stage, microbatch) has exactly one F, and either one B, or one I and one W."""
    num = {kind: counts(index, kind) for kind in COMPUTE}

    def say(mask: npt.NDArray[np.bool_], text: str) -> Iterator[Violation]:
        for stage, microbatch in _each(mask):
            rows = tuple(
                row for kind in sorted(COMPUTE) if (row := int(index.all_of(kind)[stage, microbatch])) >= 0
            )
            yield Violation(Rule.MULTISET, f"stage {stage}, microbatch {microbatch}: {text}", rows)

    for kind in sorted(COMPUTE):
        yield from _repeated(index, kind, num[kind])
    f, b, i, w = (num[kind] for kind in (Kind.F, Kind.B, Kind.I, Kind.W))
    yield from say(f == 0, "it has no F")
    if forward_only:
        yield from say(b + i + w > 0, "it has a backward in a table that only evaluates")
        return
    yield from say((b == 0) & (i == 0), "it has neither B nor I")
    yield from say((b > 0) & (i > 0), "it has both B and I: its input gradient is computed twice")
    yield from say((b > 0) & (w > 0), "it has both B and W: its weight gradient is computed twice")
    yield from say((i > 0) & (w == 0), "it has an I and no W: its weight gradient is left over")
    yield from say((w > 0) & (i == 0) & (b == 0), "it has a W and no I")


def _repeated(index: Index, kind: Kind, num: npt.NDArray[np.int64]) -> Iterator[Violation]:
    table = index.table
    repeated = num > 1
    if not repeated.any():
        return
    mine = np.flatnonzero((table.kinds == kind) & index.in_range)
    mine = mine[repeated[table.stages[mine], table.microbatches[mine]]]
    rows_by_key: dict[tuple[int, int], list[int]] = {}
    for row in mine.tolist():
        rows_by_key.setdefault((int(table.stages[row]), int(table.microbatches[row])), []).append(row)
    rule = Rule.MULTISET if kind in COMPUTE else Rule.MATCHING
    for rows in rows_by_key.values():
        message = f"{len(rows)} times the same: {', '.join(at(index, row) for row in rows[:4])}"
        yield Violation(rule, message, tuple(rows))


def order_within_stage(index: Index) -> Iterator[Violation]:
    """F comes before B and I, I before W, and the parts of an overlapped pair do not depend on each other."""
    first = {kind: index.all_of(kind) for kind in COMPUTE}
    for early, late in ((Kind.F, Kind.B), (Kind.F, Kind.I), (Kind.I, Kind.W)):
        yield from _not_before(index, first[early], first[late], Rule.ORDER)
    table = index.table
    pairs = np.flatnonzero(table.groups == OVERLAP_FIRST)
    same = (table.stages[pairs] == table.stages[pairs + 1]) & (
        table.microbatches[pairs] == table.microbatches[pairs + 1]
    )
    for row in pairs[same].tolist():
        message = f"{at(index, row)} and its own backward are one overlapped pair; the backward needs its F"
        yield Violation(Rule.ORDER, message, (row, row + 1))


def order_between_local_stages(index: Index) -> Iterator[Violation]:
    """On one rank, a stage's F comes after its predecessor's, and its backward after its successor's."""
    table = index.table
    backward = np.where(index.all_of(Kind.B) >= 0, index.all_of(Kind.B), index.all_of(Kind.I))
    forward = index.all_of(Kind.F)
    for stage in range(table.num_stages - 1):
        if table.has_next(stage) and table.placement[stage] == table.placement[stage + 1]:
            yield from _not_before(index, forward[stage], forward[stage + 1], Rule.ORDER)
            yield from _not_before(index, backward[stage + 1], backward[stage], Rule.ORDER)


def _not_before(index: Index, early: Rows, late: Rows, rule: Rule) -> Iterator[Violation]:
    """Violations where `late` does not come after `early` on the same rank (if both are present)."""
    early, late = early.ravel(), late.ravel()
    wrong = (late >= 0) & (late < early)
    wrong[wrong] = index.ranks[early[wrong]] == index.ranks[late[wrong]]
    for before, after in zip(early[wrong].tolist(), late[wrong].tolist(), strict=True):
        why = "for which it waits" if index.table.kinds[after] in WAITED_FOR else "whose result it needs"
        message = f"{at(index, after)} comes before {at(index, before)}, {why}"
        yield Violation(rule, message, (after, before))


def transfers_matched(index: Index, *, forward_only: bool) -> Iterator[Violation]:
    """Every transfer between ranks has exactly one send and one receive, and there are no others."""
    table = index.table
    placement = np.asarray(table.placement)
    position = np.arange(table.num_stages) % table.chain_length
    remote_next = position < table.chain_length - 1
    remote_next[:-1] &= placement[:-1] != placement[1:]
    remote_previous = np.concatenate(([False], remote_next[:-1]))
    none = np.zeros(table.num_stages, np.bool_)
    for kind, wanted in (
        (Kind.SEND_F, remote_next),
        (Kind.RECV_F, remote_previous),
        (Kind.SEND_B, none if forward_only else remote_previous),
        (Kind.RECV_B, none if forward_only else remote_next),
    ):
        num = counts(index, kind)
        yield from _repeated(index, kind, num)
        for stage, microbatch in _each((num == 0) & wanted[:, None]):
            message = f"rank {table.placement[stage]} never does {stage}{kind.name}{microbatch}"
            yield Violation(Rule.MATCHING, message)
        for stage, microbatch in _each((num > 0) & ~wanted[:, None]):
            row = int(index.all_of(kind)[stage, microbatch])
            message = f"{at(index, row)}: no other rank is at the other end"
            yield Violation(Rule.MATCHING, message, (row,))


def transfers_in_order(index: Index) -> Iterator[Violation]:
    """A send comes after the computation that makes its data, a receive before the one that takes them."""
    backward = np.where(index.all_of(Kind.B) >= 0, index.all_of(Kind.B), index.all_of(Kind.I))
    forward = index.all_of(Kind.F)
    yield from _not_before(index, forward, index.all_of(Kind.SEND_F), Rule.ORDER)
    yield from _not_before(index, backward, index.all_of(Kind.SEND_B), Rule.ORDER)
    yield from _not_before(index, index.all_of(Kind.RECV_F), forward, Rule.ORDER)
    yield from _not_before(index, index.all_of(Kind.RECV_B), backward, Rule.ORDER)


def waits_matched(index: Index) -> Iterator[Violation]:
    """Every wait comes after a send that it is for; and where sends are waited for, each is, once."""
    table = index.table
    if not rows_of(table, WAITED_FOR).any():
        return
    for kind, sent in WAITED_FOR.items():
        num = counts(index, kind)
        yield from _repeated(index, kind, num)
        sends, waits = index.all_of(sent), index.all_of(kind)
        elsewhere = (sends < 0) | (index.ranks[sends] != index.ranks[waits])
        for stage, microbatch in _each((waits >= 0) & elsewhere):
            row = int(waits[stage, microbatch])
            message = f"{at(index, row)}: its rank never does {stage}{sent.name}{microbatch}"
            yield Violation(Rule.MATCHING, message, (row,))
        for stage, microbatch in _each((sends >= 0) & (waits < 0)):
            row = int(sends[stage, microbatch])
            message = f"{at(index, row)}: nothing waits for it, but other sends are waited for"
            yield Violation(Rule.MATCHING, message, (row,))
        yield from _not_before(index, sends, waits, Rule.ORDER)


def in_flight_bounded(index: Index, *, bounds: Sequence[int], until: Kind) -> Iterator[Violation]:
    """No rank holds more (stage, microbatch) pairs than its bound, between F and ``until`` (I or W)."""
    table = index.table
    held = in_flight_after(table, until=until)
    over = held > np.asarray(bounds)[ranks_of_rows(table)]
    seen: set[int] = set()
    for row in np.flatnonzero(over & rows_of(table, [Kind.F])).tolist():
        rank = int(index.ranks[row])
        if rank not in seen:
            seen.add(rank)
            message = f"after {at(index, row)} rank {rank} holds {held[row]} activations up to {until.name}"
            yield Violation(Rule.IN_FLIGHT, f"{message}; its bound is {bounds[rank]}", (row,))
