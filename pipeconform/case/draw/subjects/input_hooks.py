"""Hooks on the inputs of a stage after the first: on each of them, or on all together. Cases take turns with these."""

from __future__ import annotations

import dataclasses

from pipeconform.case import blocks
from pipeconform.case.case import Model
from pipeconform.case.draw.changes import beginning, has, on_model, without_blocks
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _member(*, together: bool) -> Subject:
    """Let one stage begin with the block: a program of its own hooks what its first block is given."""

    def begun(d: Drawing, model: Model) -> Model:
        return beginning(model, d.pick(range(1, len(model.stages))), blocks.InputHooked(together=together))

    return Subject(
        focus=Focus.INPUT_HOOKS,
        inside=True,
        needs=frozenset({Feature.USER_HOOKS}),
        trains=True,
        least_stages=2,
        contents=on_model(begun),
        no_control="a part of the subject, which has it",
    )


INPUT_HOOKS = dataclasses.replace(
    _member(together=False),
    found=has(blocks.InputHooked),
    members=(_member(together=False), _member(together=True)),
    without=without_blocks(blocks.InputHooked, instead=(blocks.Linear(),)),
    no_control="",
    control="with a linear map that hooks nothing",
)
