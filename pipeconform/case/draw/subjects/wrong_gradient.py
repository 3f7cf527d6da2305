"""Gradients of stage outputs that a hook gives another shape or dtype."""

from __future__ import annotations

from pipeconform.case.case import Model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.mistakes import Drawn, Moment, is_about, mistaken, right
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.case.mistakes import How, Mistake
from pipeconform.claims import MistakeKind


def _drawn(d: Drawing, model: Model, moment: Moment) -> Drawn:
    gradients: list[How] = ["inner", "ndim", "down"]
    stage = d.pick(range(d.num_stages))
    made = Mistake(
        where="gradient",
        how=d.pick(gradients),
        stage=stage,
        microbatch=moment.microbatch,
        early=moment.early,
    )
    return made, moment.once or d.pick([True, False])


WRONG_GRADIENT = Subject(
    focus=Focus.WRONG_GRADIENT,
    inside=True,
    mistaken=True,
    found=is_about(MistakeKind.GRADIENT),
    program=mistaken(_drawn),
    without=right,
    control="without the hook that changes the gradient",
)
