"""Tensor hooks on parameters, and hooks on the backward of a module."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.case import Model
from pipeconform.case.draw.changes import appended, has, on_model, without_blocks
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _both(d: Drawing, model: Model) -> Model:
    """Add both kinds, each to one stage: of a few cases, every one then judges both."""
    for block in (blocks.GradientHooked(), blocks.GradientHooked(on="module")):
        model = appended(model, d.pick(range(len(model.stages))), block)
    return model


GRADIENT_HOOKS = Subject(
    focus=Focus.GRADIENT_HOOKS,
    inside=True,
    needs=frozenset({Feature.USER_HOOKS}),
    trains=True,
    found=has(blocks.GradientHooked),
    several_microbatches=True,
    contents=on_model(_both),
    without=without_blocks(blocks.GradientHooked, instead=(blocks.Linear(),)),
    control="with linear maps that have no hooks",
)
