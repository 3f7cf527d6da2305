"""Where a page draws the stages of a case."""

from __future__ import annotations

import pytest

from pipeconform.case import blocks
from pipeconform.case.case import Case, Eval, Model, Stage, World
from pipeconform.report.html.claims import owners_of
from pipeconform.report.result import Implementation

CLAIMED = Implementation(
    reference="torch",
    name="toy",
    version="1",
    capabilities={"schedules": [{"name": "ZBVZeroBubble", "placement": "v"}]},
)


def _case(schedule: str, placement: str) -> Case:
    return Case(
        model=Model(width=1, stages=(Stage(blocks=(blocks.Linear(),)),) * 4),
        schedule=schedule,
        stages_per_rank=2,
        world=World(size=2, pipeline_ranks=(0, 1), placement=placement),
        program=(Eval(batch_size=1, num_microbatches=1),),
    )


@pytest.mark.parametrize(
    ("schedule", "placement", "owners"),
    [
        ("ZBVZeroBubble", "", (0, 1, 1, 0)),
        ("ZBVZeroBubble", "loop", (0, 1, 0, 1)),
        ("unclaimed", "", (0, 1, 0, 1)),
        ("unclaimed", "v", (0, 1, 1, 0)),
    ],
)
def test_stages_are_drawn_where_the_case_or_else_the_claim_places_them(schedule, placement, owners):
    found = owners_of(_case(schedule, placement), CLAIMED)

    assert tuple(rank for (rank,) in found) == owners
