"""Boundary tensors in float8."""

from __future__ import annotations

from pipeconform.case.draw.changes import ORDINARY_TENSORS, without_passages
from pipeconform.case.draw.passages import has_passage, passes, to_the_next, with_passages
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus

FLOAT8 = Subject(
    focus=Focus.FLOAT8,
    claimed=lambda claim, own: passes(claim, own) and own.boundary.no_grad_tensors,
    found=has_passage("float8"),
    least_stages=2,
    contents=with_passages(lambda d, source: (to_the_next("float8", source),)),
    without=without_passages,
    control="without the float8 tensor between stages",
    further=(ORDINARY_TENSORS,),
)
