"""Stage outputs whose shape or dtype changes, from one step to the next or in one microbatch."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case, Model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.mistakes import SHAPES, Drawn, Moment, dtypes, mistaken, right
from pipeconform.case.draw.subject import Subject
from pipeconform.case.focus import Focus
from pipeconform.case.mistakes import Mistake
from pipeconform.claims import MistakeKind

_KINDS = (MistakeKind.OUTPUT_SHAPE, MistakeKind.OUTPUT_DTYPE)


def _mistake(d: Drawing, model: Model, moment: Moment) -> Mistake:
    how = d.pick(d.pick([SHAPES, dtypes(d, model)]))
    return Mistake(where="output", how=how, stage=d.pick(range(d.num_stages - 1)), early=moment.early)


def _always(d: Drawing, model: Model, moment: Moment) -> Drawn:
    return _mistake(d, model, moment), d.pick([True, False])


def _once(d: Drawing, model: Model, moment: Moment) -> Drawn:
    made = _mistake(d, model, moment)
    return structs.replace(made, microbatch=d.pick(range(d.num_microbatches))), True


def _has(case: Case, *, once: bool) -> bool:
    return any(one.kind in _KINDS and (one.microbatch is not None) is once for one in case.mistakes)


CHANGED = Subject(
    focus=Focus.CHANGED,
    inside=True,
    mistaken=True,
    found=lambda case: _has(case, once=False),
    least_stages=2,
    program=mistaken(_always),
    without=right,
    control="with stage outputs that do not change",
)
CHANGED_ONCE = Subject(
    focus=Focus.CHANGED_ONCE,
    inside=True,
    mistaken=True,
    found=lambda case: _has(case, once=True),
    least_stages=2,
    program=mistaken(_once),
    without=right,
    control="with stage outputs that do not change",
)
