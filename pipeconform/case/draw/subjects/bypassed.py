"""First stages that some microbatches pass by, as texts pass by an encoder of images.

What such a stage returns for them needs no gradient.
"""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Model, Stage
from pipeconform.case.draw.changes import has, on_model, without_blocks
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _passed_by(d: Drawing, model: Model) -> Model:
    first = Stage(blocks=(blocks.Bypass(),))
    return structs.replace(model, tokens=False, input_requires_grad=False, stages=(first, *model.stages[1:]))


BYPASSED = Subject(
    focus=Focus.BYPASSED,
    needs=frozenset({Feature.UNUSED_PARAMETERS}),
    claimed=lambda claim, own: own.boundary.no_grad_tensors,
    trains=True,
    least_stages=2,
    several_microbatches=True,
    found=has(blocks.Bypass),
    contents=on_model(_passed_by),
    without=without_blocks(blocks.Bypass, instead=(blocks.Linear(),)),
    control="with a first stage that every microbatch passes through",
)
