"""Evaluations between training steps by a second schedule around the same stages."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Step, Zero
from pipeconform.case.draw.changes import changed_world, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.worlds import alone
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _program(d: Drawing, draft: Draft) -> Draft:
    """Draw where evaluations are; a training step always follows one, and most find no gradients to change."""
    t, e, zero = draft.train, draft.evaluate, Zero(set_to_none=True)
    programs: list[tuple[Step, ...]] = [(t, zero, e, t), (e, t), (t, zero, e, e, t), (t, e, zero, t)]
    return replaced(draft, program=d.pick(programs))


SECOND_SCHEDULE = Subject(
    focus=Focus.SECOND_SCHEDULE,
    needs=frozenset({Feature.EVAL, Feature.SECOND_SCHEDULE}),
    trains=True,
    found=lambda case: case.world.second_schedule,
    rarity=2,
    least_stages=2,
    world=lambda d: structs.replace(alone(d), second_schedule=True),
    program=_program,
    without=lambda case: changed_world(case, second_schedule=False),
    control="with evaluation by the training schedule",
)
