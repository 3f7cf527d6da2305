"""Schedules that the engine writes to a file and reads again, its own and those of the user."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import World
from pipeconform.case.draw.changes import changed_world
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.draw.subjects.orders import in_line, ordered
from pipeconform.case.draw.worlds import bystanding
from pipeconform.case.focus import Focus
from pipeconform.claims import Feature


def _world(d: Drawing) -> World:
    own = Feature.TABLES in d.features and in_line(d.claim, d.capabilities) and d.pick([True, False])
    return structs.replace(ordered(in_turn=True)(d) if own else bystanding(d), rewritten=True)


WRITTEN = Subject(
    focus=Focus.WRITTEN,
    needs=frozenset({Feature.WRITTEN_TABLES}),
    trains=True,
    found=lambda case: case.world.rewritten,
    rarity=3,  # the order may be one of the user's own
    least_ranks=2,
    several_microbatches=True,
    world=_world,
    without=lambda case: changed_world(case, rewritten=False),
    control="with the schedule as it was made",
)
