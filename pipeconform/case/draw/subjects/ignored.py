"""Stage inputs and outputs that are not used."""

from __future__ import annotations

from pipeconform.case.case import Passage
from pipeconform.case.draw.changes import ORDINARY_TENSORS, without_passages
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.passages import passes, to_the_next, with_passages
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus


def _drawn(d: Drawing, source: int) -> tuple[Passage, ...]:
    return (d.pick([to_the_next("stream", source, used=False), to_the_next("bypass", source)]),)


def _is_ignored(passage: Passage) -> bool:
    return passage.kind == "bypass" or (passage.kind == "stream" and not passage.users)


IGNORED = Subject(
    focus=Focus.IGNORED,
    claimed=passes,
    found=lambda case: any(map(_is_ignored, case.model.passages)),
    least_stages=2,
    contents=with_passages(_drawn),
    without=without_passages,
    control="without the second tensor between stages, so that every tensor is used",
    further=(ORDINARY_TENSORS,),
)
