"""The case that each rank is given where the plan is wrong on purpose, and what would be right then."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case, Eval, Step, Train

__all__ = ["planned_for", "right_cases"]


def planned_for(case: Case, position: int | None) -> Case:
    """The case as the plan of one pipeline rank (None: of a bystander) has it.

    Where that is a case like any other it has no mistake any more; what can be no case keeps it.
    """
    one = case.world.misplan
    if one is None or one.how in ("metadata", "shape", "dtype"):
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
    """If no rank refuses the plan, one of these cases gives the right result; which rank's plan counts is left open."""
    one = case.world.misplan
    if one is None or one.how in ("schedule", "metadata", "shape", "dtype"):
        return (case.without_mistakes,)
    if one.rank is None:
        return (planned_for(case, None),)
    return (case.without_mistakes, planned_for(case, one.rank))


def _with_number(step: Step, number: int) -> Step:
    return structs.replace(step, num_microbatches=number) if isinstance(step, Train | Eval) else step
