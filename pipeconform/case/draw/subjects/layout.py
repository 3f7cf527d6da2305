"""Boundary tensors in unusual memory layouts."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.blocks import AnyBlock
from pipeconform.case.case import Model
from pipeconform.case.draw.changes import appended, changed_blocks, changed_model, has, on_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus


def _unusual(d: Drawing, model: Model) -> Model:
    last = len(model.stages) - 1
    if last > 0:
        # only at the last boundary: kernels round differently for other strides
        layouts: list[AnyBlock] = [blocks.Layout(), blocks.Layout(kind="expanded")]
        model = appended(model, last - 1, d.pick(layouts))
    return structs.replace(model, view_outputs=True)


LAYOUT = Subject(
    focus=Focus.LAYOUT,
    found=has(blocks.Layout),
    contents=on_model(_unusual),
    without=lambda case: changed_model(changed_blocks(case, {blocks.Layout: ()}), view_outputs=False),
    control="with contiguous tensors between stages",
)
