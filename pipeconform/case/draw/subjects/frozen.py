"""Frozen parameters and frozen stages."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Model, Stage
from pipeconform.case.draw.changes import is_frozen, on_model, unfrozen
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _some(d: Drawing, model: Model) -> Model:
    """Add a frozen block or freeze a whole stage, but never the whole model."""
    s = d.pick(range(len(model.stages)))
    whole = d.pick([True, False]) if len(model.stages) > 1 else False
    old = model.stages[s]
    new = (
        Stage(blocks=old.blocks, frozen=True)
        if whole
        else Stage(blocks=(blocks.Linear(frozen=True), *old.blocks))
    )
    return structs.replace(model, stages=(*model.stages[:s], new, *model.stages[s + 1 :]))


FROZEN = Subject(
    focus=Focus.FROZEN,
    needs=frozenset({Feature.FROZEN}),
    trains=True,
    found=is_frozen,
    contents=on_model(_some),
    without=unfrozen,
    control="with nothing frozen",
)
