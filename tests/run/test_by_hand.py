"""A step by hand: its order can be run however sends behave, and mistakes are answered on the way."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
import torch
from pipeconform.reference_impl.adapter import ReferenceAdapter

from pipeconform.adapter import Placement, Plan, Ranks, placement_of
from pipeconform.case import data
from pipeconform.case.blocks import Linear
from pipeconform.case.case import ByHand, Case, Stage, Train, World
from pipeconform.run import by_hand
from pipeconform.run.answers import CheckedPipeline
from pipeconform.run.planning import plan_of
from pipeconform.schedule import Kind, verify
from tests.case.examples import small_case, with_model

HANDS = [ByHand(mixed=mixed, late=late) for mixed, late in itertools.product((False, True), repeat=2)]


@pytest.mark.parametrize("hand", HANDS, ids=repr)
@pytest.mark.parametrize("placement", [Placement.LOOP, Placement.V])
def test_the_order_is_complete_and_free_of_deadlock(hand: ByHand, placement: Placement) -> None:
    for p, v, m in itertools.product((1, 2, 3), (1, 2), (1, 2, 5)):
        placed = [min(owners) for owners in placement_of(placement, num_ranks=p, num_stages=p * v)]
        table = by_hand.order(hand, placement=placed, num_ranks=p, num_microbatches=m)
        kinds = {a.kind for actions in table for a in actions for a in a.leaves}

        assert verify(table) == ()
        assert (Kind.B in kinds) == (hand.mixed and m > 1)
        assert {Kind.I, Kind.W} <= kinds


def _case(hand: ByHand) -> Case:
    stage = Stage(blocks=(Linear(),))
    run = Train(batch_size=6, num_microbatches=3)
    case = small_case(
        schedule="InterleavedZeroBubble",
        stages_per_rank=2,
        world=World(size=1, pipeline_ranks=(0,)),
        program=(msgspec.structs.replace(run, by_hand=hand),),
    )
    return with_model(case, stages=(stage, stage))


def _plan(case: Case) -> Plan:
    ranks = Ranks(
        device=torch.device("cpu"),
        rank=0,
        world_size=1,
        pipeline_ranks=(0,),
        pipeline_rank=0,
        pipeline_group=None,
    )
    return plan_of(case, ReferenceAdapter().describe(), ranks, None)


def _gradients(hand: ByHand) -> tuple[list[Any], tuple[Any, ...]]:
    case = _case(hand)
    plan = _plan(case)
    pipeline = CheckedPipeline(ReferenceAdapter().build(plan))
    answers = by_hand.drive(pipeline, plan, data.make_batch(case, 0), hand)
    return [g for own in pipeline.gradients().values() for g in own.values()], answers


@pytest.mark.parametrize("mistake", ["weight_first", "weight_twice", "weight_unknown"])
def test_a_mistake_is_made_once_answered_and_changes_nothing(mistake: Any) -> None:
    right, none = _gradients(ByHand())

    gradients, answers = _gradients(ByHand(mistake=mistake, stage=1, microbatch=2))

    assert none == ()
    (answer,) = answers
    assert (answer.stage, answer.microbatch) == (1, 3 if mistake == "weight_unknown" else 2)
    assert answer.error is not None
    assert "stage 1" in answer.error
    assert all(torch.equal(a, b) for a, b in zip(gradients, right, strict=True))


@pytest.mark.parametrize("hand", HANDS, ids=repr)
def test_every_order_gives_the_same_gradients(hand: ByHand) -> None:
    right, _ = _gradients(ByHand())
    found, _ = _gradients(hand)

    for mine, expected in zip(found, right, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-14, atol=1e-15)


def test_the_text_of_an_answer_holds_its_causes() -> None:
    def fails() -> None:
        try:
            raise KeyError(0)
        except KeyError as error:
            raise ValueError("chunk 0") from error

    with pytest.raises(ValueError, match="chunk") as caught:
        fails()
    assert by_hand._text(caught.value) == "chunk 0\n0"
