"""Training steps around which the caller has switched gradients off."""

from __future__ import annotations

from pipeconform.case.case import Model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.mistakes import Drawn, Moment, is_about, mistaken, right
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.case.mistakes import How, Mistake
from pipeconform.claims import MistakeKind


def _drawn(d: Drawing, model: Model, moment: Moment) -> Drawn:
    modes: list[How] = ["no_grad", "inference_mode"]
    return Mistake(where="mode", how=d.pick(modes)), d.pick([False, True])


NO_GRADIENTS = Subject(
    focus=Focus.NO_GRADIENTS,
    mistaken=True,
    claimed=lambda claim, own: own.mode_from == "call",
    found=is_about(MistakeKind.NO_GRADIENTS),
    program=mistaken(_drawn),
    without=right,
    control="with gradients",
)
