"""Stages whose inputs and outputs the user declares."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from pipeconform.case.case import World
from pipeconform.case.draw.changes import changed_world
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Draft, Subject
from pipeconform.case.draw.subjects import boundary
from pipeconform.case.draw.worlds import bystanding
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _crossing(d: Drawing, draft: Draft) -> Draft:
    """Draw what crosses: one tensor, as often as several, some of them without a gradient, where that is claimed."""
    several: list[Callable[[Drawing, Draft], Draft]] = [
        one.contents
        for one in (boundary.BOUNDARY, boundary.NO_GRAD)
        if one.contents is not None and one.claimed(d.claim, d.capabilities)
    ]
    how = d.pick([None, *several]) if several else None
    return draft if how is None else how(d, draft)


def _world(d: Drawing) -> World:
    return structs.replace(bystanding(d), declared=d.pick(["examples", "exact"]))


DECLARED = Subject(
    focus=Focus.DECLARED,
    needs=frozenset({Feature.DECLARED_BOUNDARIES}),
    found=lambda case: bool(case.world.declared),
    rarity=2,
    least_stages=2,
    contents=_crossing,
    world=_world,
    without=lambda case: changed_world(case, declared=""),
    control="without the declaration",
)
