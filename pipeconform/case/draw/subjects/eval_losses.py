"""Evaluations with classes as targets, with ignored targets, or with a loss that takes keyword arguments."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case, Eval, Step, Train
from pipeconform.case.draw.changes import cleared
from pipeconform.case.draw.subject import Subject
from pipeconform.case.draw.subjects.evaluation import mixed
from pipeconform.case.draw.subjects.targets import kinds, losses, special
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _found(case: Case) -> bool:
    steps = {type(step) for step in case.program}
    return {Train, Eval} <= steps and special(case)


def _trained(case: Case) -> Case:
    """The case with training steps in place of its evaluations."""

    def changed(step: Step) -> Step:
        if not isinstance(step, Eval):
            return step
        return Train(
            batch_size=step.batch_size, num_microbatches=step.num_microbatches, autocast=step.autocast
        )

    return cleared(structs.replace(case, program=tuple(map(changed, case.program))))


EVAL_LOSSES = Subject(
    focus=Focus.EVAL_LOSSES,
    needs=frozenset({Feature.EVAL, Feature.EVAL_LOSSES}),
    trains=True,
    claimed=lambda claim, own: bool(kinds(own)),
    found=_found,
    rarity=2,
    contents=losses,
    program=mixed,
    without=_trained,
    control="with training steps in place of the evaluations",
)
