"""Draws sizes: p ranks, v stages per rank and m microbatches, as the schedule accepts them."""

from __future__ import annotations

from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Size, Subject
from pipeconform.case.focus import Limits
from pipeconform.claims import Feature, ScheduleClaim

__all__ = ["draw_size", "other_size", "shapes", "some_m", "table"]

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
"""p, the number of replicas and the number of tensor-parallel ranks."""
MOST_STAGES = 8
"""More stages only cost time."""
Row = tuple[int, int, int, int]
"""p, v, the number of replicas and the number of tensor-parallel ranks."""


def draw_size(d: Drawing, subject: Subject, *, one_each: bool = False) -> Size:
    """Draw p, v and m, and set the numbers of replicas and tensor-parallel ranks.

    With `one_each`, v is 1 wherever that is possible.
    """
    rows = table(d.limits, d.claim, subject)
    if one_each:
        rows = [row for row in rows if row[1] == 1] or rows
    p, v, d.num_replicas, d.num_tensor_ranks = d.pick(rows)
    taken = some_m(d.claim, p, v)
    taken = [m for m in taken if m > 1 or not subject.several_microbatches] or taken
    taken = [m for m in taken if m.bit_count() == 1 or not subject.exact_mean] or taken
    return p, v, d.pick(taken)


def table(limits: Limits, claim: ScheduleClaim, subject: Subject) -> list[Row]:
    """The sizes to draw from, large enough for the subject; empty if the limits do not allow any."""
    if subject.form == "replicas":
        return _replicated(limits, claim, subject)
    if subject.form == "tensor parallel":
        return _tensor_parallel(limits, claim, subject)
    return [
        (p, v, 1, 1)
        for p, v in shapes(limits, claim, least_stages=subject.least_stages, least_ranks=subject.least_ranks)
        if v >= subject.least_stages_per_rank
    ]


def shapes(
    limits: Limits, claim: ScheduleClaim, *, least_stages: int = 1, least_ranks: int = 1
) -> list[tuple[int, int]]:
    """The p and v to draw from; common values are listed several times."""
    return [
        (p, v)
        for p in (1, 2, 2, 2, 3, 3, 4, 4, *range(5, limits.max_ranks + 1))
        for v in claim.stages_per_rank
        if max(limits.min_ranks, least_ranks) <= p <= limits.max_ranks
        and least_stages <= p * v <= MOST_STAGES
        and some_m(claim, p, v)
    ]


def _replicated(limits: Limits, claim: ScheduleClaim, subject: Subject) -> list[Row]:
    """The sizes with replicas; the limits apply to the size of the world."""
    return [
        (p, v, replicas, 1)
        for p, replicas in _REPLICATED
        for v in claim.stages_per_rank
        if limits.min_ranks <= p * replicas <= limits.max_ranks
        and subject.least_ranks <= p <= claim.max_ranks
        and replicas >= subject.least_replicas
        and subject.least_stages <= p * v <= MOST_STAGES
        and some_m(claim, p, v)
    ]


def _tensor_parallel(limits: Limits, claim: ScheduleClaim, subject: Subject) -> list[Row]:
    """The sizes with tensor-parallel ranks, and with replicas if the subject allows them and sharding is claimed."""
    own, replicated = limits.capabilities.tensor_parallel, limits.capabilities.data_parallel
    sharded = (
        own is not None and own.sharded and replicated is not None and "fully_shard" in replicated.wrappers
    )
    most_replicas = subject.most_replicas if sharded else 1
    return [
        (p, v, replicas, parts)
        for p, replicas, parts in _TENSOR_PARALLEL
        for v in claim.stages_per_rank
        if limits.min_ranks <= p * replicas * parts <= limits.max_ranks
        and replicas <= most_replicas
        and claim.min_ranks <= p <= claim.max_ranks
        and subject.least_stages <= p * v <= MOST_STAGES
        and some_m(claim, p, v)
    ]


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
    # one microbatch hides what goes wrong between microbatches: it is listed once, to shrink to
    return [*taken, *(m for m in taken if m > 1)]


def other_size(d: Drawing, draft: Draft) -> tuple[int, int]:
    """Draw m and the size of microbatches, one or both other than those of the draft, as far as claimed."""
    train, m = draft.train, d.num_microbatches
    rows = train.batch_size // m
    sizes: list[tuple[int, int]] = []
    if Feature.VARYING_SHAPES in d.features:
        sizes += [(m, other) for other in (1, 2, 3, 4) if other != rows]
    if Feature.VARYING_MICROBATCHES in d.features:
        sizes += [(k, rows) for k in some_m(d.claim, d.num_ranks, d.stages_per_rank) if k != m]
    if len(d.features & {Feature.VARYING_SHAPES, Feature.VARYING_MICROBATCHES}) == 2:
        sizes += [(k, other) for k, _ in sizes if k != m for other in (1, 2, 3) if other != rows]
    return d.pick(sizes or [(m, rows)])
