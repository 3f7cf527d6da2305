"""Tables in torch's CSV formats: one line per rank, one cell per action.

*Compute-only* files may have empty cells (idle slots; dropped on reading, as torch's runtime drops them);
files *with communication* must not. The formats carry neither placement nor microbatch count: the placement
is inferred from the computations (the first rank that computes a stage owns it) and m is the largest microbatch
plus one, unless given. The formats cannot express chains and batches; a batch is written in our own notation,
which torch does not read.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence

from pipeconform.errors import BadTableError
from pipeconform.schedule.actions import COMPUTE, Action
from pipeconform.schedule.table import Table

_FEW = 1000
"""Microbatch numbers below this are accepted, however few actions a file has."""


def to_csv(table: Iterable[Iterable[object]]) -> str:
    """A table, or lines of cells, as torch 2.13 writes it, with lines that end in CR LF."""
    return "".join(",".join(map(str, actions)) + "\r\n" for actions in table)


def from_csv(
    text: str,
    *,
    name: str = "table",
    placement: Sequence[int] | None = None,
    num_microbatches: int | None = None,
) -> Table:
    """Read a table, compute-only or with communication.

    Args:
        text: The file's content.
        name: What to call it in errors.
        placement: Stage → rank; inferred from the computations if None.
        num_microbatches: m; the largest microbatch plus one if None.

    Raises:
        BadTableError: A cell is not an action, the file has no action, or a stage is computed nowhere; the message
            gives line, column and reason.
    """
    ranks = _read(text, name)
    leaves = [leaf for actions in ranks for action in actions for leaf in action.leaves]
    if not leaves:
        raise BadTableError(f"{name}: the file has no action")
    if placement is None:
        placement = _placement(ranks, text, name)
    if num_microbatches is None:
        num_microbatches = _num_microbatches(leaves, text, name)
    try:
        return Table.build(ranks, placement=placement, num_microbatches=num_microbatches)
    except BadTableError as reason:
        raise BadTableError(f"{name}: {reason}") from None


def _read(text: str, name: str) -> list[list[Action]]:
    ranks: list[list[Action]] = []
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            actions = []
            for column, cell in enumerate(cells, 1):
                if not cell.strip():
                    continue
                try:
                    actions.append(Action.parse(cell))
                except BadTableError as reason:
                    place = f"{name}, line {reader.line_num}, column {column}"
                    raise BadTableError(f"{place} (rank {len(ranks)}): {reason}") from None
            ranks.append(actions)
    except csv.Error as reason:
        raise BadTableError(f"{name}, line {reader.line_num}: {reason}") from None
    return ranks


def _placement(ranks: list[list[Action]], text: str, name: str) -> tuple[int, ...]:
    owner: dict[int, int] = {}
    for rank, actions in enumerate(ranks):
        for action in actions:
            for leaf in action.leaves:
                if leaf.kind in COMPUTE:
                    owner.setdefault(leaf.stage, rank)
    if not owner:
        raise BadTableError(f"{name}: the file has no computation from which to infer the placement")
    missing = [stage for stage in range(min(max(owner), len(owner)) + 1) if stage not in owner]
    if missing:
        last = max(owner)
        place = _place(text, name, lambda leaf: leaf.stage == last and leaf.kind in COMPUTE)
        raise BadTableError(f"{place}, but no rank computes stage {missing[0]}")
    return tuple(owner[stage] for stage in range(len(owner)))


def _num_microbatches(leaves: list[Action], text: str, name: str) -> int:
    largest = max(leaf.microbatch or 0 for leaf in leaves)
    if largest >= max(_FEW, len(leaves)):  # every microbatch needs an action
        place = _place(text, name, lambda leaf: leaf.microbatch == largest)
        raise BadTableError(
            f"{place} names microbatch {largest}, but the file has only {len(leaves)} actions"
        )
    return largest + 1


def _place(text: str, name: str, wanted: Callable[[Action], bool]) -> str:
    """The place of the first wanted action, in a file that has been read and has one."""
    return next(
        f"{name}, line {reader.line_num}, column {column}: {cell.strip()}"
        for reader in (csv.reader(io.StringIO(text, newline=""), strict=True),)
        for cells in reader
        for column, cell in enumerate(cells, 1)
        if cell.strip() and any(wanted(leaf) for leaf in Action.parse(cell).leaves)
    )
