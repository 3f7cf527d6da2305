"""The parts of a certification that shards judge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeconform.errors import UsageError

if TYPE_CHECKING:
    from pipeconform.campaign.target import Target

__all__ = ["parse_shard", "part_of"]


def parse_shard(text: str) -> tuple[int, int]:
    """Parse ``"1/3"`` into a shard's number, counted from 1, and the number of shards.

    Raises:
        UsageError: the text does not have this form.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    number, total = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= total:
        raise UsageError(f"--shard {text!r}: expected I/N with 1 ≤ I ≤ N, such as 1/3")
    return number, total


def part_of(
    target: Target, requirements: Sequence[str], *, number: int, total: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The requirements and the columns of one shard.

    Schedules are divided among the shards, since the cases of one schedule serve several requirements. A wrapper has no
    schedules; its requirements are divided.

    Raises:
        UsageError: there are more shards than schedules or requirements.
    """
    by_columns = target.shares_executions
    dealt, what = (
        (target.columns, "schedules are claimed") if by_columns else (requirements, "requirements are judged")
    )
    if total > len(dealt):
        raise UsageError(f"--shard {number}/{total}: only {len(dealt)} {what}; use at most that many shards")
    part = tuple(dealt[number - 1 :: total])
    return (tuple(requirements), part) if by_columns else (part, ())
