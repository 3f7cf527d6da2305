"""What each rank is told of a case whose plan is wrong on purpose, and what would be right then."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Case, Eval, Step, Train

__all__ = ["right_answers", "told_to"]


def told_to(case: Case, position: int | None) -> Case:
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


def right_answers(case: Case) -> tuple[Case, ...]:
    """Cases of which one tells what is right if nobody refuses the plan: whose plan counts is not for us to say."""
    one = case.world.misplan
    if one is None or one.how in ("schedule", "metadata", "shape", "dtype"):
        return (case.without_mistakes,)
    if one.rank is None:
        return (told_to(case, None),)
    return (case.without_mistakes, told_to(case, one.rank))


def _with_number(step: Step, number: int) -> Step:
    return structs.replace(step, num_microbatches=number) if isinstance(step, Train | Eval) else step
