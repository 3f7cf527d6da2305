"""Boundary gradients in unusual memory layouts."""

from __future__ import annotations

from pipeconform.case.case import PassageKind
from pipeconform.case.draw.changes import ORDINARY_TENSORS, without_passages
from pipeconform.case.draw.passages import has_passage, passes, to_the_next, with_passages
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus

_KINDS: tuple[PassageKind, ...] = ("summed", "turned")

GRADIENT_LAYOUT = Subject(
    focus=Focus.GRADIENT_LAYOUT,
    trains=True,
    claimed=passes,
    found=has_passage(*_KINDS),
    least_stages=2,
    contents=with_passages(lambda d, source: (to_the_next(d.pick(_KINDS), source),)),
    without=without_passages,
    control="without the second tensor between stages, whose gradient is not contiguous",
    further=(ORDINARY_TENSORS,),
)
