"""How many activations a rank holds, which depends only on the order of its own list, not on costs."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from pipeconform.schedule.actions import Kind
from pipeconform.schedule.table import Table


def in_flight_after(table: Table, *, until: Literal[Kind.I, Kind.W] | Kind = Kind.W) -> npt.NDArray[np.int64]:
    """After every row, how many (stage, microbatch) pairs its rank holds.

    A pair is held from its F until its I (``until=Kind.I``) or its W; a full backward counts as both. An
    overlapped pair holds its forward's activations before it frees its backward's.
    """
    change = np.zeros(len(Kind), np.int64)
    change[Kind.F] = 1
    change[[Kind.B, until]] = -1
    total = np.cumsum(change[table.kinds])
    before = np.concatenate(([0], total))[table.offsets[:-1]]
    held: npt.NDArray[np.int64] = total - np.repeat(before, np.diff(table.offsets))
    return held
