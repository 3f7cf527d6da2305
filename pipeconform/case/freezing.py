"""Stages that are frozen and unfrozen in the course of a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeconform.case.model import Model, Stage
from pipeconform.case.program import Freeze, Step, Train

__all__ = ["impossible_freezes", "is_trainable"]


def is_trainable(stage: Stage) -> bool:
    """Whether anything of a stage is trained, as long as no step of the program changes that."""
    return not stage.frozen and any(not block.frozen for block in stage.blocks)


def impossible_freezes(model: Model, program: Sequence[Step]) -> Iterator[str]:
    """Yield what is impossible about the steps that freeze stages, and about what is left to train after them."""
    trained = [is_trainable(stage) for stage in model.stages]
    for index, step in enumerate(program):
        if isinstance(step, Freeze):
            if not 0 <= step.stage < len(model.stages):
                last = len(model.stages) - 1
                yield f"program[{index}].stage is {step.stage}: expected a stage of the model, 0 to {last}"
                return
            trained[step.stage] = not step.frozen
        elif isinstance(step, Train) and not any(trained):
            yield f"program[{index}] trains, but every stage is frozen by then: leave one that is not"
