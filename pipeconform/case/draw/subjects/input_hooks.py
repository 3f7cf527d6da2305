"""Tensor hooks on the inputs of a stage after the first."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.case import Model
from pipeconform.case.draw.changes import beginning, has, on_model, without_blocks
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _begun(d: Drawing, model: Model) -> Model:
    """Let one stage begin with the block: a program of its own hooks what its first block is given."""
    return beginning(model, d.pick(range(1, len(model.stages))), blocks.InputHooked())


INPUT_HOOKS = Subject(
    focus=Focus.INPUT_HOOKS,
    needs=frozenset({Feature.USER_HOOKS}),
    trains=True,
    found=has(blocks.InputHooked),
    least_stages=2,
    contents=on_model(_begun),
    without=without_blocks(blocks.InputHooked, instead=(blocks.Linear(),)),
    control="with a linear map that hooks nothing",
)
