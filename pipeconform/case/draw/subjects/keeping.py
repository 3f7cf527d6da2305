"""Stages that keep what they are given, as hooks for logging and memories of the last segment do."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.case import Model
from pipeconform.case.draw.changes import beginning, has, on_model, without_blocks
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _keeping(d: Drawing, model: Model) -> Model:
    return beginning(model, d.pick(range(1, len(model.stages))), blocks.Keeping(), replacing=1)


KEEPING = Subject(
    focus=Focus.KEEPING,
    inside=True,
    needs=frozenset({Feature.BUFFERS, Feature.STATE}),
    least_stages=2,
    found=has(blocks.Keeping),
    contents=on_model(_keeping),
    without=without_blocks(blocks.Keeping, instead=(blocks.Linear(),)),
    control="with a linear map that keeps nothing",
)
