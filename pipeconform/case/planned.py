"""The case that each rank is given when the plan is wrong on purpose, and the cases whose results are then right."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case, Eval, Step, Train
from pipeconform.case.misplans import TABLES

__all__ = ["planned_for", "right_cases"]


def planned_for(case: Case, position: int | None) -> Case:
    """The case according to the plan of one pipeline rank (None for a bystander).

    The result has no misplan if the wrong plan is a valid case by itself; otherwise it keeps the misplan.
    """
    one = case.world.misplan
    if one is None or one.how in ("metadata", "shape", "dtype", *TABLES):
        return case
    if one.rank is not None and one.rank != position:
        return case.without_mistakes
    match one.how:
        case "single" | "stages":
            world = structs.replace(case.world, misplan=None)
            return structs.replace(case, world=world, stages_per_rank=case.stages_per_rank + 1)
        case "microbatches":
            program = tuple(_with_number(step, one.number) for step in case.program)
            return structs.replace(case.without_mistakes, program=program)
    return case


def right_cases(case: Case) -> tuple[Case, ...]:
    """The cases of which one must give the result if no rank refuses the plan; any rank's plan may count."""
    one = case.world.misplan
    if one is None or one.how in ("schedule", "metadata", "shape", "dtype", *TABLES):
        return (case.without_mistakes,)
    if one.rank is None:
        return (planned_for(case, None),)
    return (case.without_mistakes, planned_for(case, one.rank))


def _with_number(step: Step, number: int) -> Step:
    return structs.replace(step, num_microbatches=number) if isinstance(step, Train | Eval) else step
