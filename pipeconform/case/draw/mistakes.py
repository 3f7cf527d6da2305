"""Drawing what is done wrong; shrinks toward the first step, the first stage and every microbatch."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import Model, Step, Train, Zero
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.focus import Focus
from pipeconform.case.mistakes import How, Mistake, Where

__all__ = ["mistaken_program"]


def mistaken_program(d: Drawing, train: Train, model: Model) -> tuple[Step, ...]:
    """Training steps, the last of which is made wrong; a mistake in one microbatch comes after a right step."""
    mistake, later = _drawn(d, train, model)
    wrong = structs.replace(train, mistake=mistake)
    return (train, Zero(set_to_none=True), wrong) if later else (wrong,)


def _drawn(d: Drawing, train: Train, model: Model) -> tuple[Mistake, bool]:
    """The mistake, and whether a right step comes before it."""
    last = len(model.stages) - 1
    early, once = d.pick([False, True]), d.pick([False, True])
    # which forward is whose microbatch is known once the dry runs are over
    which = d.pick(range(train.num_microbatches)) if once else None
    match d.focus:
        case Focus.WRONG_SHAPE:
            hows: list[How] = ["inner", "ndim", "batch", "flattened"]
            return Mistake(where="input", how=d.pick(hows)), d.pick([True, True, False])
        case Focus.WRONG_DTYPE:
            return Mistake(where="input", how=d.pick(_dtypes(model))), d.pick([True, True, False])
        case Focus.CHANGED | Focus.CHANGED_ONCE:
            kinds: list[list[How]] = [["inner", "ndim", "batch", "flattened"], _dtypes(model)]
            how, stage = d.pick(d.pick(kinds)), d.pick(range(last))
            if d.focus is Focus.CHANGED:
                return Mistake(where="output", how=how, stage=stage, early=early), d.pick([True, False])
            one = d.pick(range(train.num_microbatches))
            return Mistake(where="output", how=how, stage=stage, microbatch=one, early=early), True
        case Focus.WRONG_VALUES:
            values: list[How] = ["none", "more", "fewer", "object"]
            how, where = d.pick(values), d.pick([*range(last), None])
            if where is None:
                return Mistake(where="input", how=how), d.pick([True, False])
            return Mistake(where="output", how=how, stage=where, microbatch=which, early=early), True
        case Focus.WRONG_GRADIENT:
            gradients: list[How] = ["inner", "ndim", "down"]
            stage = d.pick(range(last + 1))
            made = Mistake(
                where="gradient", how=d.pick(gradients), stage=stage, microbatch=which, early=early
            )
            return made, once or d.pick([True, False])
        case Focus.WRONG_BATCH:
            splits: list[How] = ["targets", "scarce"] if train.num_microbatches > 1 else ["targets"]
            if model.carried:
                splits = ["ragged", *splits]
            return Mistake(where="batch", how=d.pick(splits)), d.pick([False, True])
        case Focus.HOOK_RAISES:
            stage = d.pick(range(last + 1))
            return Mistake(where="reduction", how="raise", stage=stage), d.pick([False, True])
    places: list[Where] = ["forward", "backward", "loss"]
    place = d.pick(places)
    stage = 0 if place == "loss" else d.pick(range(last + 1))
    made = Mistake(where=place, how="raise", stage=stage, microbatch=which, early=early and place != "loss")
    return made, once or d.pick([True, False])


def _dtypes(model: Model) -> list[How]:
    """The wrong dtypes that there are: a float64 has no larger one."""
    if model.dtype == "float64":
        return ["down", "integer", "complex"]
    return ["up", "down", "integer", "complex"]
