"""Draws passages: tensors that a stage makes for later ones."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from pipeconform.case.case import Case, Model, Passage, PassageKind
from pipeconform.case.draw.changes import on_model
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Change
from pipeconform.claims import Capabilities, ScheduleClaim

__all__ = ["has_passage", "passes", "to_the_next", "with_passages"]


def passes(claim: ScheduleClaim, own: Capabilities) -> bool:
    """Whether a second tensor may cross a boundary."""
    return own.boundary.max_tensors > 1 and not {"tuple", "list"}.isdisjoint(own.boundary.containers)


def with_passages(drawn: Callable[[Drawing, int], tuple[Passage, ...]], *, reach: int = 1) -> Change:
    """A change that adds the passages of `drawn`, which gets a source stage with at least `reach` stages after it."""

    def change(d: Drawing, model: Model) -> Model:
        source = d.pick(range(len(model.stages) - reach))
        found = drawn(d, source)
        if not d.boundary.differ:
            found = tuple(structs.replace(one, source=0, last=len(model.stages) - 1) for one in found)
        return structs.replace(model, passages=found, container=d.pick(d.containers))

    return on_model(change)


def to_the_next(kind: PassageKind, source: int, *, used: bool = True) -> Passage:
    """A passage from one stage to the next, which may use it or not."""
    return Passage(kind=kind, source=source, last=source + 1, users=(source + 1,) if used else ())


def has_passage(*kinds: PassageKind) -> Callable[[Case], bool]:
    """A test for cases with a passage of one of these kinds."""
    return lambda case: any(one.kind in kinds for one in case.model.passages)
