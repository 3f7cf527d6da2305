"""The order in which an interleaved schedule walks through a rank's stages; shared by several families.

Microbatches go in rounds of g. Within a round a rank runs its first stage on all g microbatches, then its
second, … (backwards: its last stage first). Counting all forwards of a rank from 0, number k therefore is

    round ⌊k / (g·v)⌋, lap ⌊k / g⌋ mod v, microbatch round·g + (k mod g)

Rounds need not hold p microbatches: with R = max(1, ⌊m / p⌋) rounds of g = m / R each, any m that R
divides will do (torch's rule); the paper asks for g = p.
"""

from __future__ import annotations

from pipeconform.schedule.actions import Action, Kind
from pipeconform.schedule.families.family import Size


def round_size(size: Size) -> int:
    """Microbatches per round, g."""
    return size.num_microbatches // max(1, size.num_microbatches // size.num_ranks)


def forward(k: int, *, rank: int, size: Size, group: int) -> Action:
    """The k-th forward of a rank."""
    lap, microbatch = _lap_and_microbatch(k, size, group)
    return Action(lap * size.num_ranks + rank, Kind.F, microbatch)


def backward(k: int, *, kind: Kind, rank: int, size: Size, group: int) -> Action:
    """The k-th backward of a rank (B, or I and W alike)."""
    lap, microbatch = _lap_and_microbatch(k, size, group)
    return Action((size.stages_per_rank - 1 - lap) * size.num_ranks + rank, kind, microbatch)


def _lap_and_microbatch(k: int, size: Size, group: int) -> tuple[int, int]:
    return k // group % size.stages_per_rank, k // (group * size.stages_per_rank) * group + k % group


def refuse_uneven_rounds(size: Size) -> str | None:
    """Refuse sizes whose microbatches do not form equal rounds."""
    rounds = max(1, size.num_microbatches // size.num_ranks)
    if size.num_microbatches % rounds:
        return f"m must be a multiple of the number of rounds, max(1, ⌊m/p⌋) = {rounds}"
    return None
