"""Changes that leave a case that can be run, and judged for what is asked."""

from __future__ import annotations

from pipeconform.case.blocks import BatchNorm, Linear
from pipeconform.case.case import Model, Stage
from pipeconform.case.draw.changes import without_blocks
from tests.case.examples import small_case, with_model


def _blocks_left(*stages: Stage) -> list[tuple[object, ...]]:
    case = with_model(small_case(model=Model(width=3, stages=stages)))
    return [stage.blocks for stage in without_blocks(BatchNorm)(case).model.stages]


def test_a_stage_of_which_nothing_would_be_left_gets_a_linear_map() -> None:
    found = _blocks_left(Stage(blocks=(BatchNorm(),)), Stage(blocks=(Linear(bias=False), BatchNorm())))

    assert found == [(Linear(),), (Linear(bias=False),)]
