"""Loading a state before or between steps, of models with and without buffers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from msgspec import structs

from pipeconform.case import blocks
from pipeconform.case.case import Case, Load, Step, Zero
from pipeconform.case.draw.changes import in_some_stage, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _program(d: Drawing, draft: Draft) -> Draft:
    run: Step = draft.train if d.claim.trains else draft.evaluate
    z = Zero(set_to_none=True)
    programs: list[tuple[Step, ...]] = [(run, Load(), z, run), (Load(), run, z, Load(), run)]
    return replaced(draft, program=d.pick(programs))


def _without(case: Case) -> Case:
    return structs.replace(case, program=tuple(step for step in case.program if not isinstance(step, Load)))


def _with_buffers(d: Drawing, draft: Draft) -> Draft:
    """The draft with statistics, which are loaded in place, and a count, which a forward replaces."""
    for block in (blocks.BatchNorm(), blocks.Counting()):
        draft = in_some_stage(block)(d, draft)
    return draft


def _members() -> Iterator[Subject]:
    plain = Subject(
        focus=Focus.LOAD,
        needs=frozenset({Feature.LOADING}),
        program=_program,
        no_control="a part of the subject, which has it",
    )
    yield plain
    yield dataclasses.replace(plain, needs=plain.needs | {Feature.BUFFERS}, contents=_with_buffers)


LOAD = Subject(
    focus=Focus.LOAD,
    needs=frozenset({Feature.LOADING}),
    found=lambda case: any(isinstance(step, Load) for step in case.program),
    program=_program,
    members=tuple(_members()),
    without=_without,
    control="without loading a state",
)
