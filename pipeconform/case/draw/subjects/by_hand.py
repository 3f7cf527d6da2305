"""Training steps in which the user calls the stages' operations."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import ByHand, Train, Zero
from pipeconform.case.draw.changes import changed_steps, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _program(d: Drawing, draft: Draft) -> Draft:
    hands = [
        ByHand(mixed=True),
        ByHand(),
        ByHand(mixed=True, late=True),
        ByHand(late=True),
        ByHand(mixed=True, late=True),
    ]
    step = structs.replace(draft.train, by_hand=d.pick(hands))
    return replaced(draft, program=(step, Zero(set_to_none=True), d.pick([draft.train, step])))


BY_HAND = Subject(
    focus=Focus.BY_HAND,
    needs=frozenset({Feature.STAGE_OPERATIONS}),
    trains=True,
    claimed=lambda claim, own: claim.split_backward,
    found=lambda case: any(step.by_hand is not None and not step.by_hand.mistake for step in case.trains),
    program=_program,
    without=lambda case: changed_steps(case, Train, by_hand=None),
    control="with all steps run by the schedule",
)
