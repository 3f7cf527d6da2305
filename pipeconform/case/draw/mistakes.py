"""Draws mistakes; shrinks toward the first step, the first stage and all microbatches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import structs

from pipeconform.case.case import Case, Model, Zero
from pipeconform.case.draw.changes import replaced
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Change, Draft
from pipeconform.case.mistakes import How, Mistake
from pipeconform.claims import MistakeKind

__all__ = ["SHAPES", "Drawn", "Moment", "dtypes", "is_about", "mistaken", "right"]

SHAPES: tuple[How, ...] = ("inner", "ndim", "batch", "flattened")
Drawn: TypeAlias = tuple[Mistake, bool]
"""The mistake, and whether a correct step precedes it."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When a mistake is made, if it has the choice."""

    early: bool
    microbatch: int | None

    @property
    def once(self) -> bool:
        """Whether it is made in one microbatch only; a correct step then precedes it."""
        return self.microbatch is not None


def mistaken(drawn: Callable[[Drawing, Model, Moment], Drawn]) -> Change:
    """A program whose last training step has the mistake; a correct step may precede it."""

    def program(d: Drawing, draft: Draft) -> Draft:
        train = draft.train
        early, once = d.pick([False, True]), d.pick([True, True, False])
        # the microbatch of a forward is known only after the dry runs; with the last one, most is left of the step
        last = train.num_microbatches - 1
        microbatch = d.pick([last, last, *range(last + 1)]) if once else None
        mistake, later = drawn(d, draft.model, Moment(early=early, microbatch=microbatch))
        wrong = structs.replace(train, mistake=mistake)
        return replaced(draft, program=(train, Zero(set_to_none=True), wrong) if later else (wrong,))

    return program


_LARGER = {"float32": "float64", "bfloat16": "float32", "float16": "float32"}


def dtypes(d: Drawing, model: Model) -> tuple[How, ...]:
    """The possible wrong dtypes: a larger one if it is claimed, since a device may have none."""
    usual: tuple[How, ...] = ("down", "integer", "complex")
    return ("up", *usual) if _LARGER.get(model.dtype) in d.boundary.dtypes else usual


def is_about(*kinds: MistakeKind) -> Callable[[Case], bool]:
    """A test for cases with a mistake of one of these kinds, other than in a communication hook."""
    return lambda case: any(one.kind in kinds and one.where != "reduction" for one in case.mistakes)


def right(case: Case) -> Case:
    """The control of a subject about mistakes: the case without them."""
    return case.without_mistakes
