"""Stages that end in an activation whose backward needs its result."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Model
from pipeconform.case.draw.changes import appended, changed_blocks, changed_model, has, on_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus


def _ends(d: Drawing, model: Model) -> Model:
    """Let every stage that hands on its output end in one; the result itself is handed on, which is no view."""
    for stage in range(max(1, len(model.stages) - 1)):
        model = appended(model, stage, blocks.Activation(kind=d.pick(("relu", "tanh", "sigmoid", "softmax"))))
    return structs.replace(model, view_outputs=True)


ACTIVATIONS = Subject(
    focus=Focus.ACTIVATIONS,
    trains=True,
    found=has(blocks.Activation),
    least_stages=2,
    widths=(2, 3, 4, 4, 6, 8, 8),  # the softmax of one value is a constant
    contents=on_model(_ends),
    without=lambda case: changed_model(
        changed_blocks(case, {blocks.Activation: (blocks.Linear(),)}), view_outputs=False
    ),
    control="with linear maps at the end of its stages",
)
