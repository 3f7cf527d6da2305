"""Stage outputs that are views."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.draw.changes import changed_model, on_model
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus

VIEWS = Subject(
    focus=Focus.VIEWS,
    found=lambda case: (
        case.model.view_outputs and not case.has(blocks.Layout, blocks.Inplace, blocks.Activation)
    ),
    contents=on_model(lambda d, model: structs.replace(model, view_outputs=True)),
    without=lambda case: changed_model(case, view_outputs=False),
    control="with stage outputs that are not views",
)
