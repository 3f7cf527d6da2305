"""Complex boundary tensors."""

from __future__ import annotations

from pipeconform.case.case import Passage, PassageKind
from pipeconform.case.draw.changes import ORDINARY_TENSORS, without_passages
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.passages import has_passage, passes, to_the_next, with_passages
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus


def _drawn(d: Drawing, source: int) -> tuple[Passage, ...]:
    kinds: list[PassageKind] = (
        ["complex", "complex", "rotations"] if d.boundary.no_grad_tensors else ["complex"]
    )
    return (to_the_next(d.pick(kinds), source),)


COMPLEX = Subject(
    focus=Focus.COMPLEX,
    claimed=lambda claim, own: passes(claim, own) and own.boundary.complex_tensors,
    found=has_passage("complex", "rotations"),
    least_stages=2,
    contents=with_passages(_drawn),
    without=without_passages,
    control="without the complex tensor between stages",
    further=(ORDINARY_TENSORS,),
)
