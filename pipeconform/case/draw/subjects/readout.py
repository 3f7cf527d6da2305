"""Loss functions that use a parameter of the last stage, as an output layer that is fused with cross-entropy does."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.draw.changes import changed_model, on_model
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

READOUT = Subject(
    focus=Focus.READOUT,
    needs=frozenset({Feature.LOSS_PARAMETERS}),
    trains=True,
    found=lambda case: case.model.readout,
    contents=on_model(lambda d, model: structs.replace(model, readout=True)),
    without=lambda case: changed_model(case, readout=False),
    control="with a loss function without parameters",
)
