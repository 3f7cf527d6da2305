"""Exceptions in stages, in loss functions, and in communication hooks of replicas."""

from __future__ import annotations

from pipeconform.case.case import Model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.mistakes import Drawn, Moment, is_about, mistaken, right
from pipeconform.case.draw.replicas import replicated
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.case.mistakes import Mistake, Where
from pipeconform.claims import MistakeKind


def _anywhere(d: Drawing, model: Model, moment: Moment) -> Drawn:
    places: list[Where] = ["forward", "backward", "loss"]
    place = d.pick(places)
    in_loss = place == "loss"
    made = Mistake(
        where=place,
        how="raise",
        stage=0 if in_loss else d.pick(range(d.num_stages)),
        microbatch=moment.microbatch,
        early=moment.early and not in_loss,
    )
    return made, moment.once or d.pick([True, False])


def _in_hook(d: Drawing, model: Model, moment: Moment) -> Drawn:
    made = Mistake(where="reduction", how="raise", stage=d.pick(range(d.num_stages)))
    return made, d.pick([False, True])


RAISES = Subject(
    focus=Focus.RAISES,
    mistaken=True,
    inside=True,
    found=is_about(MistakeKind.EXCEPTION),
    several_microbatches=True,
    program=mistaken(_anywhere),
    without=right,
    control="without the exception",
)
HOOK_RAISES = Subject(
    focus=Focus.HOOK_RAISES,
    form="replicas",
    mistaken=True,
    claimed=lambda claim, own: (
        own.data_parallel is not None
        and "ddp" in own.data_parallel.wrappers
        and "hook" in own.data_parallel.options
    ),
    found=lambda case: any(one.where == "reduction" for one in case.mistakes),
    world=replicated(lambda d: {"wrapper": "ddp", "hook": True}),
    program=mistaken(_in_hook),
    without=right,
    control="with a communication hook that does not raise",
)
