"""Dropout, whose masks depend on the random state of the process."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.draw.changes import appended, has, on_model, without_blocks
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.case.model import Model
from pipeconform.claims import Feature


def _dropped(d: Drawing, model: Model) -> Model:
    """Drop in one stage, or in each, as users' models do."""
    every = range(len(model.stages))
    for stage in every if d.pick([False, True]) else [d.pick(every)]:
        model = appended(model, stage, blocks.Dropout())
    return model


DROPOUT = Subject(
    focus=Focus.DROPOUT,
    inside=True,
    needs=frozenset({Feature.DROPOUT}),
    trains=True,
    found=has(blocks.Dropout),
    contents=on_model(_dropped),
    without=without_blocks(blocks.Dropout),
    control="without dropout",
)
