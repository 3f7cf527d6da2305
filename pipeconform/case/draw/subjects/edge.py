"""Sizes at the edges of what a schedule accepts, and beyond; otherwise the cases are plain."""

from __future__ import annotations

from collections.abc import Callable

from pipeconform.case.draw.sizes import MOST_STAGES
from pipeconform.case.draw.subject import Size, Subject
from pipeconform.case.focus import Focus, Limits
from pipeconform.claims import ScheduleClaim

_EDGES: tuple[Callable[[int, int, int], bool], ...] = (
    lambda p, v, m: m == 1,
    lambda p, v, m: 1 < m < p,
    lambda p, v, m: p == 1,
    lambda p, v, m: v > 3,
)


def edge_sizes(claim: ScheduleClaim, *, min_ranks: int, max_ranks: int) -> list[list[Size]]:
    """One list of sizes for each kind of edge that exists, smallest first; unclaimed sizes are the last kind.

    The kinds are one microbatch, fewer microbatches than ranks, one rank, more than three stages per rank, and an m
    outside the claim (up to 2p + 1) for p and v within it.
    """
    inside: list[Size] = []
    outside: list[Size] = []
    for p in range(max(min_ranks, claim.min_ranks), min(max_ranks, claim.max_ranks) + 1):
        if claim.ranks_even and p % 2:
            continue
        for v in claim.stages_per_rank:
            least = claim.least_microbatches(num_ranks=p, stages_per_rank=v)
            for m in range(1, max(2 * p, least + p) + 2) if p * v <= MOST_STAGES else ():
                taken = claim.takes(num_ranks=p, stages_per_rank=v, num_microbatches=m)
                if taken:
                    inside.append((p, v, m))
                elif m <= 2 * p + 1:
                    outside.append((p, v, m))
    kinds = [[size for size in inside if edge(*size)] for edge in _EDGES]
    return [kind for kind in (*kinds, outside) if kind]


def _kinds(limits: Limits, claim: ScheduleClaim) -> list[list[Size]]:
    return edge_sizes(claim, min_ranks=limits.min_ranks, max_ranks=limits.max_ranks)


def _known(limits: Limits, claim: ScheduleClaim) -> frozenset[Size]:
    return frozenset(size for kind in _kinds(limits, claim) for size in kind)


EDGE = Subject(
    focus=Focus.EDGE,
    size=lambda d: d.pick(d.pick(_kinds(d.limits, d.claim))),
    sizes=_known,
    no_control="the sizes themselves are the subject, and a case of another size is a different case",
)
