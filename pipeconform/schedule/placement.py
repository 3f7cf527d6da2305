"""Placements: which rank owns which stage.

A placement is a tuple, stage → rank. With p ranks and v stages per rank:

* *loop*: stage s lives on rank s mod p; the chain runs p−1 → 0 between laps.
* *V*: laps go down and up in turn; the ends of neighbouring laps share a rank, so rank 0 owns the first
  and (v even) the last stage.
* *explicit*: anything else, checked by `explicit`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeconform.errors import BadTableError

Placement = tuple[int, ...]


def loop(num_ranks: int, *, stages_per_rank: int = 1) -> Placement:
    """Stage s on rank s mod p."""
    _positive(num_ranks, stages_per_rank)
    return tuple(stage % num_ranks for stage in range(num_ranks * stages_per_rank))


def v(num_ranks: int, *, stages_per_rank: int = 2) -> Placement:
    """Lap k downwards for even k, upwards for odd k."""
    _positive(num_ranks, stages_per_rank)
    lap = list(range(num_ranks))
    return tuple(rank for k in range(stages_per_rank) for rank in (lap if k % 2 == 0 else lap[::-1]))


def explicit(ranks: Sequence[int], *, num_ranks: int) -> Placement:
    """A placement given stage by stage.

    Raises:
        BadTableError: A rank is outside 0 … num_ranks−1, or there is no stage at all.
    """
    if not ranks:
        raise BadTableError("a placement needs at least one stage")
    for stage, rank in enumerate(ranks):
        if not 0 <= rank < num_ranks:
            raise BadTableError(f"stage {stage} is placed on rank {rank}; ranks are 0 … {num_ranks - 1}")
    return tuple(int(rank) for rank in ranks)


def stages_of(placement: Sequence[int], *, rank: int) -> tuple[int, ...]:
    """The stages that a rank owns, in ascending order."""
    return tuple(stage for stage, owner in enumerate(placement) if owner == rank)


def name_of(placement: Sequence[int], *, num_ranks: int) -> str:
    """``"loop"``, ``"v"`` or ``"explicit"``; a single lap, which is both, is called ``"loop"``."""
    per_rank = len(placement) // num_ranks
    if per_rank > 0:
        if tuple(placement) == loop(num_ranks, stages_per_rank=per_rank):
            return "loop"
        if tuple(placement) == v(num_ranks, stages_per_rank=per_rank):
            return "v"
    return "explicit"


def _positive(num_ranks: int, stages_per_rank: int) -> None:
    if num_ranks < 1 or stages_per_rank < 1:
        raise BadTableError(f"a placement needs ranks and stages, got p={num_ranks}, v={stages_per_rank}")
