"""Inputs of a wrong shape or dtype."""

from __future__ import annotations

from pipeconform.case.case import Model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.mistakes import SHAPES, Drawn, Moment, dtypes, is_about, mistaken, right
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.case.mistakes import Mistake
from pipeconform.claims import MistakeKind


def _shape(d: Drawing, model: Model, moment: Moment) -> Drawn:
    return Mistake(where="input", how=d.pick(SHAPES)), d.pick([True, True, False])


def _dtype(d: Drawing, model: Model, moment: Moment) -> Drawn:
    return Mistake(where="input", how=d.pick(dtypes(d, model))), d.pick([True, True, False])


WRONG_SHAPE = Subject(
    focus=Focus.WRONG_SHAPE,
    mistaken=True,
    found=is_about(MistakeKind.INPUT_SHAPE),
    program=mistaken(_shape),
    without=right,
    control="with inputs of the right shape",
)
WRONG_DTYPE = Subject(
    focus=Focus.WRONG_DTYPE,
    mistaken=True,
    found=is_about(MistakeKind.INPUT_DTYPE),
    program=mistaken(_dtype),
    without=right,
    control="with inputs of the right dtype",
)
