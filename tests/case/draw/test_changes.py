"""Changes that leave a case that can be run, and judged for what is asked."""

from __future__ import annotations

from pipeconform.case.blocks import Attention, BatchNorm, Linear, Mlp
from pipeconform.case.case import Model, Stage
from pipeconform.case.draw.changes import with_gradients_of_size, without_blocks
from tests.case.examples import small_case, with_model


def _blocks_left(*stages: Stage) -> list[tuple[object, ...]]:
    case = with_model(small_case(model=Model(width=3, stages=stages)))
    return [stage.blocks for stage in without_blocks(BatchNorm)(case).model.stages]


def test_a_stage_of_which_nothing_would_be_left_gets_a_linear_map() -> None:
    found = _blocks_left(Stage(blocks=(BatchNorm(),)), Stage(blocks=(Linear(bias=False), BatchNorm())))

    assert found == [(Linear(),), (Linear(bias=False),)]


def test_where_gradients_must_have_a_size_no_block_makes_them_zero_but_for_rounding() -> None:
    model = Model(width=3, stages=(Stage(blocks=(Linear(), BatchNorm())), Stage(blocks=(Attention(),))))

    assert with_gradients_of_size(model).stages == (Stage(blocks=(Linear(), Mlp())), Stage(blocks=(Mlp(),)))
