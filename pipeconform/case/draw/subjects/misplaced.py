"""Stages that are not placed as the schedule's claim says."""

from __future__ import annotations

from msgspec import structs

from pipeconform.case.case import World
from pipeconform.case.draw.changes import changed_world
from pipeconform.case.draw.drawing import Drawing
from pipeconform.case.draw.subject import Subject
from pipeconform.case.draw.worlds import alone
from pipeconform.case.focus import Focus
from pipeconform.claims import Capabilities, Placement, ScheduleClaim


def _several(claim: ScheduleClaim, own: Capabilities) -> bool:
    line = claim.placement in (Placement.LOOP, Placement.V)
    return (
        claim.takes_placement and line and any(v > 1 for v in claim.stages_per_rank) and claim.max_ranks > 1
    )


def _world(d: Drawing) -> World:
    return structs.replace(alone(d), placement="v" if d.claim.placement is Placement.LOOP else "loop")


MISPLACED = Subject(
    focus=Focus.MISPLACED,
    trains=True,
    claimed=_several,
    found=lambda case: bool(case.world.placement),
    least_ranks=2,
    least_stages_per_rank=2,
    world=_world,
    without=lambda case: changed_world(case, placement=""),
    control="with the stages on the ranks where the schedule places them",
)
