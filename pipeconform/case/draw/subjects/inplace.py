"""Operations that modify a tensor in place."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.draw.changes import changed_blocks, changed_model, has, in_some_stage, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus


def _modified(d: Drawing, draft: Draft) -> Draft:
    # stages pass on the modified tensor itself, not a copy
    found = in_some_stage(blocks.Inplace())(d, draft)
    return replaced(found, model=structs.replace(found.model, view_outputs=True))


INPLACE = Subject(
    focus=Focus.INPLACE,
    found=has(blocks.Inplace),
    sequence=lambda d, sequence: 0 if d.boundary.min_ndim <= 2 else sequence,
    contents=_modified,
    without=lambda case: changed_model(
        changed_blocks(case, {blocks.Inplace: (blocks.Linear(),)}), view_outputs=False
    ),
    control="with a linear map that modifies nothing in place",
)
