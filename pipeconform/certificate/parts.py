"""Which schedules a shard of a certification judges."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeconform.errors import UsageError

__all__ = ["parse_shard", "schedules_of_shard"]


def parse_shard(text: str) -> tuple[int, int]:
    """The number of a shard, from 1, and how many there are, in ``"1/3"``.

    Raises:
        UsageError: it is not of this form.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    number, total = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= total:
        raise UsageError(f"--shard {text!r}: expected I/N with 1 ≤ I ≤ N, such as 1/3")
    return number, total


def schedules_of_shard(schedules: Sequence[str], *, number: int, total: int) -> tuple[str, ...]:
    """The schedules of one shard, dealt in turn; a schedule's cases are shared, so it stays in one piece.

    Raises:
        UsageError: there are more shards than schedules.
    """
    if total > len(schedules):
        raise UsageError(
            f"--shard {number}/{total}: only {len(schedules)} schedules are claimed; use at most that many shards"
        )
    return tuple(schedules[number - 1 :: total])
