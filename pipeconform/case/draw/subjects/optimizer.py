"""Optimizer steps between training steps."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Adam, Case, Optimize, Sgd, Zero
from pipeconform.case.draw.changes import replaced, with_gradients_of_size
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _optimizer(d: Drawing, draft: Draft) -> Draft:
    optimizers: list[Sgd | Adam] = [Sgd(lr=0.0), Sgd(lr=0.125), Sgd(lr=0.0625, momentum=0.5)]
    if "adam" in d.capabilities.optimizers:
        optimizers += [Adam(lr=0.015625), Adam(lr=0.0)]
    chosen = d.pick(optimizers)
    steady = isinstance(chosen, Adam) and chosen.lr > 0
    model = with_gradients_of_size(draft.model) if steady else draft.model
    return replaced(draft, model=model, optimizer=chosen)


def _program(d: Drawing, draft: Draft) -> Draft:
    steps = (draft.train, Optimize(), Zero(set_to_none=True)) * d.pick([2, 3, 20])
    return replaced(draft, program=steps[:-1])


def _without(case: Case) -> Case:
    program = tuple(step for step in case.program if not isinstance(step, Optimize))
    return structs.replace(case, program=program, optimizer=None)


OPTIMIZER = Subject(
    focus=Focus.OPTIMIZER,
    needs=frozenset({Feature.OPTIMIZER}),
    trains=True,
    found=lambda case: any(isinstance(step, Optimize) for step in case.program),
    contents=_optimizer,
    program=_program,
    without=_without,
    control="without the optimizer steps",
)
