"""Evaluation after the caller has switched gradients off."""

from __future__ import annotations

from typing import Literal

from msgspec import structs

from pipeconform.case.case import Case, Eval, Load, Step, Zero
from pipeconform.case.draw.changes import changed_steps, replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _program(d: Drawing, draft: Draft) -> Draft:
    guards: list[Literal["no_grad", "inference_mode"]] = ["no_grad", "inference_mode", "inference_mode"]
    e = structs.replace(draft.evaluate, guard=d.pick(guards))
    t, z = draft.train, Zero(set_to_none=True)
    programs: list[tuple[Step, ...]] = [(t, e), (e, t), (t, e, z, t)]
    return replaced(draft, program=d.pick(programs) if d.claim.trains else (e, draft.evaluate))


def is_guarded(case: Case) -> bool:
    """Whether the caller switches gradients off for any evaluation."""
    return any(isinstance(step, Eval) and step.guard for step in case.program)


GUARDED = Subject(
    focus=Focus.GUARDED,
    needs=frozenset({Feature.EVAL}),
    found=lambda case: is_guarded(case) and not any(isinstance(step, Load) for step in case.program),
    program=_program,
    without=lambda case: changed_steps(case, Eval, guard=""),
    control="with gradients left on by the caller",
)
