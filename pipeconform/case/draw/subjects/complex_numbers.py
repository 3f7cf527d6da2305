"""Complex boundary tensors."""

from __future__ import annotations

from pipeconform.case.draw.changes import ORDINARY_TENSORS, without_passages
from pipeconform.case.draw.passages import has_passage, passes, to_the_next, with_passages
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus

COMPLEX = Subject(
    focus=Focus.COMPLEX,
    claimed=lambda claim, own: passes(claim, own) and own.boundary.complex_tensors,
    found=has_passage("complex"),
    least_stages=2,
    contents=with_passages(lambda d, source: (to_the_next("complex", source),)),
    without=without_passages,
    control="without the complex tensor between stages",
    further=(ORDINARY_TENSORS,),
)
