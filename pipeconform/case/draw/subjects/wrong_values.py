"""Missing values, surplus values, and values that are not tensors."""

from __future__ import annotations

from pipeconform.case.case import Model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.mistakes import Drawn, Moment, is_about, mistaken, right
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.case.mistakes import How, Mistake, is_wrong_at_once
from pipeconform.claims import MistakeKind


def _drawn(d: Drawing, model: Model, moment: Moment) -> Drawn:
    values: list[How] = ["none", "more", "fewer", "object"]
    how, stage = d.pick(values), d.pick([*range(d.num_stages - 1), None])
    if stage is None:
        return Mistake(where="input", how=how), d.pick([True, False])
    if how == "object":
        how = d.pick(["object", "mapping"])
    wrong = Mistake(where="output", how=how, stage=stage, microbatch=moment.microbatch, early=moment.early)
    at_once = is_wrong_at_once(wrong, containers=d.boundary.containers)
    return wrong, moment.once or not at_once or d.pick([True, False])


WRONG_VALUES = Subject(
    focus=Focus.WRONG_VALUES,
    inside=True,
    mistaken=True,
    found=is_about(MistakeKind.ARITY, MistakeKind.NO_TENSOR),
    program=mistaken(_drawn),
    without=right,
    control="with the right number of values, all of them tensors",
)
