"""The pairs of properties in the executed cases: schedule, p, v, m compared with p, kind of boundary.

Many defects need two things at once. A pair is reachable if the claims and the run's limits allow a case that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from pipeconform.adapter import ScheduleClaim
from pipeconform.case.case import Case
from pipeconform.case.draw.claimed import is_claimed
from pipeconform.case.draw.registry import SUBJECTS
from pipeconform.case.draw.sizes import shapes, some_m
from pipeconform.case.focus import Focus, Limits
from pipeconform.report.result import Pairs
from pipeconform.spec.levels import batch_class

__all__ = ["DIMENSIONS", "Point", "boundary_kind", "pairwise", "points_of", "reachable_points"]

DIMENSIONS = ("schedule", "p", "v", "m", "boundary")
Point = tuple[str, ...]
"""A value for each of `DIMENSIONS`; other points are those of `pipeconform.campaign.together`."""

_SHAPES = frozenset({"scalar", "flat", "single", "deep", "empty"})
_NO_GRADIENT = frozenset({"positions", "mask", "scale"})
_KINDS = {
    "one tensor": Focus.PLAIN,
    "several tensors": Focus.BOUNDARY,
    "without gradient": Focus.NO_GRAD,
    "16 bits": Focus.DTYPE,
    "views": Focus.VIEWS,
    "skip": Focus.SKIP,
    "other shapes": Focus.SHAPES,
    "float8": Focus.FLOAT8,
    "complex": Focus.COMPLEX,
}
_MOST_NAMED = 6


def boundary_kind(case: Case) -> str:
    """What crosses the boundaries between stages, named after its rarest property."""
    model = case.model
    passages = {one.kind for one in model.passages}
    if case.num_stages == 1:
        return "none"
    if "float8" in passages:
        return "float8"
    if passages & {"complex", "rotations"}:
        return "complex"
    if passages & _SHAPES:
        return "other shapes"
    if passages:
        return "skip"
    if _NO_GRADIENT & set(model.carried):
        return "without gradient"
    if model.dtype in ("bfloat16", "float16"):
        return "16 bits"
    if model.view_outputs:
        return "views"
    return "several tensors" if model.carried else "one tensor"


def points_of(case: Case) -> frozenset[Point]:
    """The points of a case, one for each class of its runs' numbers of microbatches."""
    p, v = case.num_ranks, case.stages_per_rank
    classes = {batch_class(num_ranks=p, num_microbatches=run.num_microbatches) for run in case.runs}
    return frozenset((case.schedule, str(p), str(v), found, boundary_kind(case)) for found in classes)


def reachable_points(limits: Limits, schedules: Iterable[str]) -> frozenset[Point]:
    """Every point that cases under `schedules` can have."""
    return frozenset(
        point
        for name in schedules
        if (claim := limits.capabilities.schedule(name)) is not None
        for point in _of_claim(limits, claim)
    )


def _of_claim(limits: Limits, claim: ScheduleClaim) -> Iterator[Point]:
    kinds = [
        (kind, max(2, SUBJECTS[focus].least_stages))
        for kind, focus in _KINDS.items()
        if is_claimed(focus, claim, limits.capabilities)
    ]
    for p, v in set(shapes(limits, claim)):
        for m in set(some_m(claim, p, v)):
            found = batch_class(num_ranks=p, num_microbatches=m)
            if p * v == 1:
                yield claim.name, str(p), str(v), found, "none"
            for kind, least in kinds:
                if p * v >= least:
                    yield claim.name, str(p), str(v), found, kind


def pairwise(reached: Iterable[Point], reachable: Iterable[Point]) -> tuple[Pairs, ...]:
    """For every two dimensions, how many of the reachable pairs were reached, and some that were not."""
    reached, reachable = (
        {point for point in points if len(point) == len(DIMENSIONS)} for points in (reached, reachable)
    )
    found = []
    for a, b in combinations(range(len(DIMENSIONS)), 2):
        possible = {(point[a], point[b]) for point in reachable}
        missing = sorted(possible - {(point[a], point[b]) for point in reached})
        found.append(
            Pairs(
                of=(DIMENSIONS[a], DIMENSIONS[b]),
                reached=len(possible) - len(missing),
                reachable=len(possible),
                missing=tuple(missing[:_MOST_NAMED]),
            )
        )
    return tuple(found)
