"""Batches in dimension 1."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.draw.changes import changed_model, on_model
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature

BATCH_DIM = Subject(
    focus=Focus.BATCH_DIM,
    needs=frozenset({Feature.BATCH_DIM}),
    claimed=lambda claim, own: own.boundary.max_ndim >= 3,
    found=lambda case: bool(case.model.batch_dim),
    sequence=lambda d, sequence: d.pick([2, 3]),
    contents=on_model(lambda d, model: structs.replace(model, batch_dim=1)),
    without=lambda case: changed_model(case, batch_dim=0),
    control="with the batch in dimension 0",
)
