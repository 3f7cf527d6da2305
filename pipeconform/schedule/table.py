"""Schedule tables: the ordered list of actions of each rank.

A table is stored as one *row* per simple action, all ranks one after the other, in four arrays (10 bytes a row);
an overlapped pair or a batch is a run of rows that their `groups` code marks as belonging together.
`Action` objects are made on demand.

A table can hold several independent *chains* of equal length (``num_chains``): bidirectional schedules
keep two copies of the model, and a chain's stages are neighbours only among themselves. Each chain
carries its own ``num_microbatches`` microbatches.

A table may be wrong, with stages on foreign ranks, or missing or repeated actions. The verifier reports this; only what
cannot be stored is refused here.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeconform.errors import BadTableError
from pipeconform.plural import plural
from pipeconform.schedule.actions import MAX_INDEX, SHARDING, Action, Kind
from pipeconform.schedule.placement import Placement, explicit, name_of

ALONE, OVERLAP_FIRST, OVERLAP_NEXT, BATCH_FIRST, BATCH_NEXT = range(5)
"""Codes of `Table.groups`: a row on its own, or the first or a further row of a pair or batch."""

_FIRST = {Kind.OVERLAP_F_B: OVERLAP_FIRST, Kind.BATCH: BATCH_FIRST}
_KIND_OF_FIRST = {code: kind for kind, code in _FIRST.items()}
_KINDS = tuple(Kind)


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """An immutable schedule table; build one with `Table.build`."""

    num_ranks: int
    num_microbatches: int
    """Microbatches per chain."""
    placement: Placement
    """Stage → rank."""
    num_chains: int
    offsets: npt.NDArray[np.int64]
    """Rank r owns the rows ``offsets[r]`` to ``offsets[r+1] − 1``."""
    kinds: npt.NDArray[np.uint8]
    groups: npt.NDArray[np.uint8]
    stages: npt.NDArray[np.int32]
    microbatches: npt.NDArray[np.int32]
    """−1 for kinds without one."""

    def __post_init__(self) -> None:
        explicit(self.placement, num_ranks=self.num_ranks)
        if self.num_microbatches < 1:
            raise BadTableError(f"a table needs at least one microbatch, got {self.num_microbatches}")
        if self.num_chains < 1 or len(self.placement) % self.num_chains:
            raise BadTableError(f"{len(self.placement)} stages cannot form {self.num_chains} equal chains")
        for array in (self.offsets, self.kinds, self.groups, self.stages, self.microbatches):
            array.setflags(write=False)

    @classmethod
    def build(
        cls,
        ranks: Sequence[Iterable[Action]],
        *,
        placement: Sequence[int],
        num_microbatches: int,
        num_chains: int = 1,
    ) -> Table:
        """A table from one iterable of actions per rank.

        Raises:
            BadTableError: A placement outside the ranks, a number that is negative or too large, or a
                microbatch where none belongs (or none where one does).
        """
        packed = [_pack(actions, rank) for rank, actions in enumerate(ranks)]
        lengths = [rows.shape[0] for rows in packed]
        rows = np.concatenate(packed) if packed else np.zeros((0, 4), np.int32)
        return cls(
            num_ranks=len(packed),
            num_microbatches=num_microbatches,
            placement=tuple(placement),
            num_chains=num_chains,
            offsets=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64),
            kinds=rows[:, 0].astype(np.uint8),
            groups=rows[:, 1].astype(np.uint8),
            stages=np.ascontiguousarray(rows[:, 2]),
            microbatches=np.ascontiguousarray(rows[:, 3]),
        )

    @property
    def num_stages(self) -> int:
        """Stages of all chains together."""
        return len(self.placement)

    @property
    def chain_length(self) -> int:
        """Stages of one chain."""
        return self.num_stages // self.num_chains

    @property
    def num_entries(self) -> int:
        """Rows: simple actions of all ranks, communication included, parts counted one by one."""
        return int(self.kinds.shape[0])

    @property
    def num_bytes(self) -> int:
        """Bytes of array storage."""
        arrays = (self.offsets, self.kinds, self.groups, self.stages, self.microbatches)
        return sum(array.nbytes for array in arrays)

    @functools.cached_property
    def has_communication(self) -> bool:
        """Whether any row is a send or a receive."""
        return bool(((self.kinds >= Kind.SEND_F) & (self.kinds <= Kind.RECV_B)).any())

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 (hexadecimal) of everything that `==` compares."""
        head = f"{self.num_ranks},{self.num_microbatches},{self.num_chains},{self.placement}".encode()
        hashed = hashlib.sha256(head)
        for array in (self.offsets, self.kinds, self.groups, self.stages, self.microbatches):
            hashed.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        return hashed.hexdigest()

    def has_next(self, stage: int) -> bool:
        """Whether a stage passes its output to another one."""
        return (stage + 1) % self.chain_length != 0

    def action_at(self, row: int) -> Action:
        """The simple action of one row."""
        microbatch = int(self.microbatches[row])
        kind = _KINDS[self.kinds[row]]
        return Action(int(self.stages[row]), kind, None if microbatch < 0 else microbatch)

    def __getitem__(self, rank: int) -> tuple[Action, ...]:
        """The actions of one rank, in order."""
        if not 0 <= rank < self.num_ranks:
            raise IndexError(f"rank {rank}; ranks are 0 … {self.num_ranks - 1}")
        return tuple(self._actions(rank))

    def __len__(self) -> int:
        return self.num_ranks

    def __iter__(self) -> Iterator[tuple[Action, ...]]:
        return (self[rank] for rank in range(self.num_ranks))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        mine, yours = self._identity(), other._identity()
        return mine[0] == yours[0] and all(map(np.array_equal, mine[1], yours[1]))

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        lines = [
            f"Table(p={self.num_ranks}, stages={self.num_stages}, m={self.num_microbatches}, "
            f"placement={name_of(self.placement, num_ranks=self.num_ranks)}, entries={self.num_entries})"
        ]
        for rank in range(min(self.num_ranks, 8)):
            words = [str(action) for _, action in zip(range(13), self._actions(rank), strict=False)]
            lines.append(f"  rank {rank}: {' '.join(words[:12])}{' …' if len(words) > 12 else ''}")
        if self.num_ranks > 8:
            lines.append(f"  … {plural(self.num_ranks - 8, 'more rank')}")
        return "\n".join(lines)

    def _identity(self) -> tuple[Any, tuple[npt.NDArray[Any], ...]]:
        head = (self.num_ranks, self.num_microbatches, self.num_chains, self.placement)
        return head, (self.offsets, self.kinds, self.groups, self.stages, self.microbatches)

    def _actions(self, rank: int) -> Iterator[Action]:
        rows = slice(int(self.offsets[rank]), int(self.offsets[rank + 1]))
        parts: list[Action] = []
        whole = ALONE
        columns = (self.kinds[rows], self.groups[rows], self.stages[rows], self.microbatches[rows])
        for kind, group, stage, microbatch in zip(*(c.tolist() for c in columns), strict=True):
            if parts and group not in {OVERLAP_NEXT, BATCH_NEXT}:
                yield Action(-1, _KIND_OF_FIRST[whole], None, tuple(parts))
                parts = []
            action = Action(stage, _KINDS[kind], None if microbatch < 0 else microbatch)
            if group == ALONE:
                yield action
                continue
            if not parts:
                whole = group
            parts.append(action)
        if parts:
            yield Action(-1, _KIND_OF_FIRST[whole], None, tuple(parts))


def without_communication(table: Table) -> Table:
    """The same table without sends, receives and waits for sends (batches vanish, sharding actions stay)."""
    keep = (table.kinds < Kind.SEND_F) | (table.kinds > Kind.WAIT_SEND_B)
    before = np.concatenate(([0], np.cumsum(keep, dtype=np.int64)))
    return Table(
        num_ranks=table.num_ranks,
        num_microbatches=table.num_microbatches,
        placement=table.placement,
        num_chains=table.num_chains,
        offsets=before[table.offsets],
        kinds=table.kinds[keep],
        groups=table.groups[keep],
        stages=table.stages[keep],
        microbatches=table.microbatches[keep],
    )


def _pack(actions: Iterable[Action], rank: int) -> npt.NDArray[np.int32]:
    flat: list[int] = []
    for action in actions:
        if not action.parts:
            flat += (action.kind, ALONE, action.stage, -1 if action.microbatch is None else action.microbatch)
            continue
        code = _FIRST[action.kind]
        for part in action.parts:
            flat += (part.kind, code, part.stage, -1 if part.microbatch is None else part.microbatch)
            code = _FIRST[action.kind] + 1
    rows = np.array(flat, dtype=np.int64).reshape(-1, 4)
    _check_numbers(rows, rank)
    return rows.astype(np.int32)


def _check_numbers(rows: npt.NDArray[np.int64], rank: int) -> None:
    kinds, stages, microbatches = rows[:, 0], rows[:, 2], rows[:, 3]
    needs_none = np.isin(kinds, [int(kind) for kind in SHARDING])
    bad = (stages < 0) | (stages > MAX_INDEX) | (microbatches < -1) | (microbatches > MAX_INDEX)
    bad |= needs_none != (microbatches == -1)
    if bad.any():
        kind, _, stage, microbatch = rows[int(np.argmax(bad))].tolist()
        unnumbered = ", ".join(sorted(k.name for k in SHARDING))
        raise BadTableError(
            f"rank {rank}: stage {stage}, kind {_KINDS[kind].name}, microbatch {microbatch} cannot be "
            f"stored: numbers are 0 … {MAX_INDEX}, and {unnumbered} take no microbatch"
        )


def rows_of(table: Table, kinds: Iterable[Kind]) -> npt.NDArray[np.bool_]:
    """Which rows have one of these kinds."""
    member = np.zeros(len(Kind), np.bool_)
    member[[int(kind) for kind in kinds]] = True
    found: npt.NDArray[np.bool_] = member[table.kinds]
    return found


def ranks_of_rows(table: Table) -> npt.NDArray[np.int32]:
    """The rank of every row."""
    return np.repeat(np.arange(table.num_ranks, dtype=np.int32), np.diff(table.offsets))
