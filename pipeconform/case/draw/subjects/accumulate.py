"""Training steps without clearing gradients between them."""

from __future__ import annotations

from pipeconform.case.case import Case, Eval, Load, Step, Zero
from pipeconform.case.draw.changes import accumulates, cleared, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _program(d: Drawing, draft: Draft) -> Draft:
    train, zero = draft.train, Zero(set_to_none=True)
    programs: list[tuple[Step, ...]] = [
        (train, train),
        (train, Zero(set_to_none=False), train, train),
        (train, train, zero, train),
    ]
    return replaced(draft, program=d.pick(programs))


def _found(case: Case) -> bool:
    trains_alone = all(not isinstance(step, Eval | Load) for step in case.program)
    return trains_alone and accumulates(case)


ACCUMULATE = Subject(
    focus=Focus.ACCUMULATE,
    needs=frozenset({Feature.ACCUMULATION}),
    trains=True,
    found=_found,
    several_microbatches=True,  # what is divided by m again shows with two only
    program=_program,
    without=cleared,
    control="with gradients cleared before every step",
)
