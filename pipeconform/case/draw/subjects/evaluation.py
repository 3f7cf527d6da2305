"""Training and evaluation steps in any order."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, Eval, Load, Step, Train, Zero
from pipeconform.case.draw.changes import in_some_stage, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.subjects.guarded import is_guarded
from pipeconform.case.draw.subjects.kwargs import has_own_splits
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _dropping(d: Drawing, draft: Draft) -> Draft:
    """Add dropout, with which an evaluation in training mode shows."""
    if Feature.DROPOUT in d.features and d.pick([False, True]):
        return in_some_stage(blocks.Dropout())(d, draft)
    return draft


def mixed(d: Drawing, draft: Draft) -> Draft:
    """Draw a program of training steps and evaluations in any order."""
    t, e, zero = draft.train, draft.evaluate, Zero(set_to_none=True)
    programs: list[tuple[Step, ...]] = [
        (t, e),
        (e, t),
        (t, e, zero, t),
        (e, e, t),
        (e, t, e, zero, t),
        (t, zero, e, e, t),
    ]
    return replaced(draft, program=d.pick(programs))


def _found(case: Case) -> bool:
    kinds = {type(step) for step in case.program}
    mixed = {Train, Eval} <= kinds and Load not in kinds
    others = is_guarded(case) or has_own_splits(case) or case.has(blocks.BatchNorm)
    return mixed and not others


def _without(case: Case) -> Case:
    program = tuple(step for step in case.program if not isinstance(step, Eval))
    return structs.replace(case, program=program)


EVAL = Subject(
    focus=Focus.EVAL,
    needs=frozenset({Feature.EVAL}),
    trains=True,
    found=_found,
    contents=_dropping,
    program=mixed,
    without=_without,
    control="without the evaluation steps",
)
