"""The order that a named schedule demands of every rank, as far as an observer can see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeconform.judge.timeline import Executed
from pipeconform.judge.two_directions import rows_of
from pipeconform.schedule import Action, Family, Kind, Table
from pipeconform.schedule.families import family

__all__ = ["Due", "accepted", "expected_order", "in_pair_order"]

Due = list[tuple[Action, bool]]
"""A rank's computations, each with a flag: whether it and the next one are the two parts of an overlapped pair."""

_WARM_UPS = ("interleaved_one_f_one_b", "interleaved_one_f_one_b_megatron")


def accepted(name: str) -> list[Family]:
    """The families that satisfy a name, the named one first: interleaved 1F1B has two accepted warm-ups."""
    others = [other for other in _WARM_UPS if other != name] if name in _WARM_UPS else []
    return [family(one) for one in (name, *others)]


def expected_order(table: Table, ranks: Sequence[Executed]) -> list[Due]:
    """The table's computations as an observer sees them, for each pipeline rank.

    A stage whose inputs need no gradient has no input part: an observer sees its whole backward when its weight
    gradients are computed. For a stage without trainable parameters, that is when its input gradient is computed.
    """
    parts = {key: part for one in ranks for key, part in one.parts.items()}
    return [_seen(row, parts) for row in rows_of(table, ranks)]


def _seen(row: Sequence[tuple[Action, ...]], parts: Mapping[tuple[int, int], str]) -> Due:
    due: Due = []
    for several in row:
        leaves = [seen for leaf in several if (seen := _leaf(leaf, parts)) is not None]
        due += [(leaf, len(leaves) == 2 and position == 0) for position, leaf in enumerate(leaves)]
    return due


def _leaf(action: Action, parts: Mapping[tuple[int, int], str]) -> Action | None:
    if action.kind > Kind.W or action.microbatch is None:
        return None  # messages and sharding are not seen here
    part = parts.get((action.stage, action.microbatch), "IW")
    if action.kind is Kind.F or part == "IW":
        return action
    if action.kind is Kind.B or action.kind.name == part:
        return action._replace(kind=Kind.B) if part else None
    return None


def in_pair_order(actions: Sequence[Action], due: Due) -> list[Action]:
    """The same computations, with overlapped pairs that ran their backward first in reversed order."""
    found = list(actions)
    for position, (action, pairs) in enumerate(due[:-1]):
        after = due[position + 1][0]
        if pairs and found[position : position + 2] == [after, action]:
            found[position : position + 2] = [action, after]
    return found
