"""Losses inside stages, whose gradients a custom autograd function adds."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.case import Model
from pipeconform.case.draw.changes import appended, has, on_model, without_blocks
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _in_the_middle(d: Drawing, model: Model) -> Model:
    last = len(model.stages) - 1
    return appended(model, d.pick(range(1, last) if last > 1 else range(last + 1)), blocks.Auxiliary())


AUXILIARY = Subject(
    focus=Focus.AUXILIARY,
    needs=frozenset({Feature.CUSTOM_FUNCTIONS}),
    trains=True,
    found=has(blocks.Auxiliary),
    contents=on_model(_in_the_middle),
    without=without_blocks(blocks.Auxiliary, instead=(blocks.Linear(),)),
    control="with a linear map that has no loss of its own",
)
