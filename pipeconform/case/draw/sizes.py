"""How large to draw: p ranks, v stages per rank, m microbatches that a schedule takes."""

from __future__ import annotations

from pipeconform.adapter import ScheduleClaim
from pipeconform.case.draw.subjects.edge import edge_sizes
from pipeconform.case.focus import (
    LEAST_RANKS,
    LEAST_SIDES,
    LEAST_STAGES,
    REPLICATED,
    TENSOR_PARALLEL,
    Focus,
    Limits,
)

__all__ = ["edges", "reachable", "replicated_shapes", "shapes", "some_m", "tensor_shapes"]

_REPLICATED = ((1, 2), (2, 2), (2, 2), (2, 2), (1, 3), (2, 1), (3, 2), (2, 3), (2, 4), (4, 2))
"""p and the number of replicas."""
_TENSOR_PARALLEL = (
    (2, 1, 2),
    (1, 1, 2),
    (2, 1, 2),
    (1, 2, 2),
    (2, 1, 2),
    (1, 1, 3),
    (3, 1, 2),
    (2, 2, 2),
    (4, 1, 2),
)
"""p, the number of replicas and that of tensor-parallel ranks."""


def reachable(limits: Limits, claim: ScheduleClaim, focus: Focus | None = None) -> bool:
    """Whether any p and v inside the limits fit the schedule's claim, with stages enough for the focus."""
    if focus in REPLICATED:
        return bool(replicated_shapes(limits, claim, focus))
    if focus in TENSOR_PARALLEL:
        return bool(tensor_shapes(limits, claim, focus))
    return bool(shapes(limits, claim, focus or Focus.PLAIN))


def shapes(limits: Limits, claim: ScheduleClaim, focus: Focus = Focus.PLAIN) -> list[tuple[int, int]]:
    """The p and v to draw from, as many as the focus needs; the usual ones stand several times."""
    least_stages, least_sides = LEAST_STAGES.get(focus, 1), LEAST_SIDES.get(focus, 1)
    least_ranks = max(limits.min_ranks, LEAST_RANKS.get(focus, 1))
    return [
        (p, v)
        for p in (1, 2, 2, 2, 3, 3, 4, 4, *range(5, limits.max_ranks + 1))
        for v in claim.stages_per_rank
        if least_ranks <= p <= limits.max_ranks
        and least_stages <= p * v <= 8
        and min(p, v) >= least_sides
        and some_m(claim, p, v)
    ]


def replicated_shapes(limits: Limits, claim: ScheduleClaim, focus: Focus) -> list[tuple[int, int, int]]:
    """The p, v and number of replicas to draw from; the limits are about the size of the world."""
    least = 2 if focus is Focus.REPLICA_TIES else 1
    least_replicas = 2 if focus is Focus.REPLICA_NORMS else 1
    return [
        (p, v, replicas)
        for p, replicas in _REPLICATED
        for v in claim.stages_per_rank
        if limits.min_ranks <= p * replicas <= limits.max_ranks
        and least <= p <= claim.max_ranks
        and replicas >= least_replicas
        and p * v <= 8
        and some_m(claim, p, v)
    ]


def tensor_shapes(limits: Limits, claim: ScheduleClaim, focus: Focus) -> list[tuple[int, int, int, int]]:
    """The p, v, number of replicas and of tensor-parallel ranks to draw from, likewise."""
    own, replicated = limits.capabilities.tensor_parallel, limits.capabilities.data_parallel
    sharded = (
        own is not None and own.sharded and replicated is not None and "fully_shard" in replicated.wrappers
    )
    crossing = focus is Focus.PLACED
    return [
        (p, v, replicas, parts)
        for p, replicas, parts in _TENSOR_PARALLEL
        for v in claim.stages_per_rank
        if limits.min_ranks <= p * replicas * parts <= limits.max_ranks
        and (replicas == 1 or (sharded and not crossing))
        and claim.min_ranks <= p <= claim.max_ranks
        and LEAST_STAGES.get(focus, 1) <= p * v <= 8
        and some_m(claim, p, v)
    ]


def edges(limits: Limits, claim: ScheduleClaim) -> list[list[tuple[int, int, int]]]:
    """Sizes at the edges of the claim and beyond, by kind; see `edge_sizes`."""
    return edge_sizes(claim, min_ranks=limits.min_ranks, max_ranks=limits.max_ranks)


def some_m(claim: ScheduleClaim, p: int, v: int) -> list[int]:
    """The numbers of microbatches worth drawing, smallest first."""
    least = claim.least_microbatches(num_ranks=p, stages_per_rank=v)
    near = sorted({1, 2, 3, 4, 5, 6, 7, p - 1, p, p + 1, 2 * p, least, least + 1, least + 2, least + p})
    taken = [
        m
        for m in near
        if m >= 1
        and m <= max(8, least + p)
        and claim.takes(num_ranks=p, stages_per_rank=v, num_microbatches=m)
    ]
    # one microbatch hides whatever goes wrong between microbatches: it is there to shrink to
    return [*taken, *(m for m in taken if m > 1)]
