"""Comparing the sizes that a level demands of a schedule with those that were judged."""

from __future__ import annotations

from collections.abc import Collection

from pipeconform.adapter import ScheduleClaim
from pipeconform.case.draw.sizes import some_m
from pipeconform.spec import CertificationLevel
from pipeconform.spec.levels import batch_class

__all__ = ["lacking"]

_CLASSES = {"one": "m = 1", "fewer": "m < p", "equal": "m = p", "more": "m > p"}


def lacking(
    level: CertificationLevel,
    claim: ScheduleClaim,
    *,
    ranks: Collection[int],
    stages_per_rank: Collection[int],
    batches: Collection[str],
) -> tuple[str, ...]:
    """The sizes that a level demands and a schedule claims, but that were not judged."""
    return (
        *(f"p = {p}" for p in _ranks(level, claim) if p not in ranks),
        *(f"v = {v}" for v in _stages(level, claim) if v not in stages_per_rank),
        *(_CLASSES[one] for one in _batches(level, claim) if one not in batches),
    )


def _ranks(level: CertificationLevel, claim: ScheduleClaim) -> list[int]:
    return [
        p for p in level.ranks if claim.min_ranks <= p <= claim.max_ranks and not (claim.ranks_even and p % 2)
    ]


def _stages(level: CertificationLevel, claim: ScheduleClaim) -> list[int]:
    return [v for v in level.stages_per_rank if v in claim.stages_per_rank]


def _batches(level: CertificationLevel, claim: ScheduleClaim) -> list[str]:
    """The classes of m that the claim covers at some size of the level."""
    found = {
        batch_class(num_ranks=p, num_microbatches=m)
        for p in _ranks(level, claim)
        for v in claim.stages_per_rank
        for m in some_m(claim, p, v)
    }
    return [one for one in level.microbatches if one in found]
