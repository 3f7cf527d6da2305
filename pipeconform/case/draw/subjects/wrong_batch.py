"""Batches that cannot be split, or whose parts do not fit together."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Model
from pipeconform.case.draw.changes import on_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.mistakes import Drawn, Moment, is_about, mistaken, right
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.case.mistakes import How, Mistake
from pipeconform.claims import MistakeKind


def _carrying(d: Drawing, model: Model) -> Model:
    """Usually add a second argument, which can differ from the first in its number of samples."""
    if d.boundary.most_inputs > 1 and d.pick([True, False]) and d.containers:
        return structs.replace(model, carried=("stream",), container=d.pick(d.containers))
    return model


def _drawn(d: Drawing, model: Model, moment: Moment) -> Drawn:
    splits: list[How] = ["targets", "scarce"] if d.num_microbatches > 1 else ["targets"]
    if model.carried:
        splits = ["ragged", *splits]
    return Mistake(where="batch", how=d.pick(splits)), d.pick([False, True])


WRONG_BATCH = Subject(
    focus=Focus.WRONG_BATCH,
    mistaken=True,
    found=is_about(MistakeKind.BATCH),
    contents=on_model(_carrying),
    program=mistaken(_drawn),
    without=right,
    control="with a batch that can be split",
)
