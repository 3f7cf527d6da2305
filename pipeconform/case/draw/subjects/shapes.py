"""Boundary tensors of unusual shapes."""

from __future__ import annotations

from pipeconform.case.case import Passage, PassageKind
from pipeconform.case.draw.changes import ORDINARY_TENSORS, without_passages
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.passages import has_passage, passes, to_the_next, with_passages
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import BoundaryClaim

_KINDS: tuple[PassageKind, ...] = ("scalar", "flat", "single", "deep", "empty")


def _kinds(boundary: BoundaryClaim) -> tuple[PassageKind, ...]:
    """The claimed kinds of passages."""
    inside = (
        boundary.min_ndim == 0,
        boundary.min_ndim <= 1,
        boundary.max_ndim >= 4,
        boundary.max_ndim >= 5,
        boundary.empty_tensors,
    )
    return tuple(kind for kind, claimed in zip(_KINDS, inside, strict=True) if claimed)


def _drawn(d: Drawing, source: int) -> tuple[Passage, ...]:
    kinds = [d.pick(_kinds(d.boundary))]
    if d.boundary.max_tensors > 2:
        kinds.append(d.pick(_kinds(d.boundary)))
    return tuple(to_the_next(kind, source) for kind in dict.fromkeys(kinds))


SHAPES = Subject(
    focus=Focus.SHAPES,
    claimed=lambda claim, own: passes(claim, own) and bool(_kinds(own.boundary)),
    found=has_passage(*_KINDS),
    least_stages=2,
    contents=with_passages(_drawn),
    without=without_passages,
    control="without the boundary tensors of unusual shapes",
    further=(ORDINARY_TENSORS,),
)
