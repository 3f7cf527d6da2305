"""Stage outputs that are views."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Model
from pipeconform.case.draw.changes import changed_model, on_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus


def _handing_on(d: Drawing, model: Model) -> Model:
    """Let stages hand on what their blocks return; the last one may have none, and hand on what it was given."""
    *others, last = model.stages
    if others and not model.classes and d.pick((False, True)):
        last = structs.replace(last, blocks=())
    return structs.replace(model, view_outputs=True, stages=(*others, last))


VIEWS = Subject(
    focus=Focus.VIEWS,
    found=lambda case: (
        case.model.view_outputs and not case.has(blocks.Layout, blocks.Inplace, blocks.Activation)
    ),
    contents=on_model(_handing_on),
    without=lambda case: changed_model(case, view_outputs=False),
    control="with stage outputs that are not views",
)
