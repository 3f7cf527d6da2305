"""Weight gradients that a stage's deferred-weight function computes."""

from __future__ import annotations

from pipeconform.case import blocks
from pipeconform.case.case import Model
from pipeconform.case.draw.changes import appended, has, on_model, without_blocks
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _somewhere(d: Drawing, model: Model) -> Model:
    # the first stage's input usually needs no gradient, so that less can go wrong there
    last = len(model.stages) - 1
    return appended(model, d.pick([last, *range(last + 1)]), blocks.Deferred())


DEFERRED = Subject(
    focus=Focus.DEFERRED,
    needs=frozenset({Feature.DEFERRED_WEIGHTS}),
    trains=True,
    found=has(blocks.Deferred),
    contents=on_model(_somewhere),
    without=without_blocks(blocks.Deferred, instead=(blocks.Linear(),)),
    control="with a linear map whose weight gradient autograd computes",
)
