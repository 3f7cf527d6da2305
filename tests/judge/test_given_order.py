"""SCH-10 to 13: what ranks computed, held against the table that the plan gave."""

import dataclasses
import re

import pytest
from msgspec import structs

from pipeconform.case.build.given_table import given_table
from pipeconform.case.case import Train, World, Zero
from pipeconform.case.orders import Order
from pipeconform.errors import BadCaseError
from pipeconform.judge.given_order import not_as_given
from pipeconform.observe.array import Array
from pipeconform.schedule import to_csv
from tests.judge.honest import EVAL, TRAIN, changed, found, honest, honest_example, plain_case, told


@pytest.mark.parametrize(
    ("requirement", "name"),
    [("SCH-10", "given order"), ("SCH-11", "any order"), ("SCH-12", "late receives"), ("SCH-13", "written")],
)
def test_who_does_as_asked_meets_it(requirement, name):
    assert found(requirement, honest_example(name)) == []


def test_the_order_of_the_schedule_is_not_the_given_one():
    made = honest_example("given order")
    case = made.case
    assert to_csv(given_table(case)).split() == ["0F0,0F1,0B0,0B1,0F2,0B2", "1F0,1B0,1F1,1B1,1F2,1B2"]

    own = honest(plain_case(world=World(size=2, pipeline_ranks=(0, 1))))
    (first, second) = not_as_given(dataclasses.replace(own, case=case))
    assert (first.kind, first.step, first.rank, first.position) == ("not the given order", 0, 0, 2)
    assert first.message == (
        "pipeline rank 0 does not compute in the order that the plan gives: computation 2: 0F2 where 0B0 is due "
        "(after 0F0 0F1)"
    )
    assert (second.rank, second.position) == (1, 1)


def test_outputs_in_the_order_of_the_table_are_another_microbatchs():
    made = honest_example("any order")
    (step,) = made.shown[1].steps
    output = step.output.array.tensor()
    turned = structs.replace(step.output, array=Array.of(output.reshape(3, 2, -1).flip(0).reshape(6, -1)))

    kinds = {kind for kind, *_ in told("SCH-11", changed(made, rank=1, output=turned))}

    assert kinds == {"output value"}


def test_losses_in_the_order_of_the_table_are_another_microbatchs():
    made = honest_example("any order")
    losses = made.shown[1].steps[0].losses

    kinds = {kind for kind, *_ in told("SCH-11", changed(made, rank=1, losses=losses[::-1]))}

    assert kinds == {"loss order"}


def test_an_order_is_one_of_training_steps_of_one_size():
    world = World(size=2, pipeline_ranks=(0, 1), order=Order(seed=0))
    message = (
        "world.order is the order of a training step: it needs training steps, all of one num_microbatches"
    )

    for program in ((EVAL,), (TRAIN, Zero(), Train(batch_size=4, num_microbatches=2))):
        with pytest.raises(BadCaseError, match=re.escape(message)):
            plain_case(*program, world=world)
