"""A step by hand: its order can be run however sends behave, and mistakes are answered on the way."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import msgspec
import pytest
import torch
from pipeconform.reference_impl.adapter import ReferenceAdapter

from pipeconform.adapter import Placement, Plan, Ranks, StageOperations, placement_of
from pipeconform.case.blocks import Linear
from pipeconform.case.build import data
from pipeconform.case.by_hand import UNTIMELY
from pipeconform.case.case import ByHand, Case, Stage, Train, World
from pipeconform.execute import by_hand
from pipeconform.execute.answers import CheckedPipeline
from pipeconform.execute.initial import Initials
from pipeconform.execute.planning import plan_of
from pipeconform.schedule import Kind, verify
from tests.case.examples import small_case, with_model

HANDS = [ByHand(mixed=mixed, late=late) for mixed, late in itertools.product((False, True), repeat=2)]
WHOLE = ByHand(whole=True)


@pytest.mark.parametrize("hand", [*HANDS, WHOLE], ids=repr)
@pytest.mark.parametrize("placement", [Placement.LOOP, Placement.V])
def test_the_order_is_complete_and_free_of_deadlock(hand: ByHand, placement: Placement) -> None:
    for p, v, m in itertools.product((1, 2, 3), (1, 2), (1, 2, 5)):
        placed = [min(owners) for owners in placement_of(placement, num_ranks=p, num_stages=p * v)]
        table = by_hand.order(hand, placement=placed, num_ranks=p, num_microbatches=m)
        kinds = {a.kind for actions in table for a in actions for a in a.leaves}

        assert verify(table) == ()
        assert (Kind.B in kinds) == (hand.whole or (hand.mixed and m > 1))
        assert ({Kind.I, Kind.W} <= kinds) == (not hand.whole)


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
    return plan_of(case, ReferenceAdapter().describe(), ranks)


def _gradients(hand: ByHand) -> tuple[list[Any], tuple[Any, ...]]:
    case = _case(hand)
    plan = _plan(case)
    pipeline = CheckedPipeline(ReferenceAdapter().build(plan), parameters=Initials(case).given_names)
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


OF_TWO_STAGES_ON_ONE_RANK = [one for one in UNTIMELY if one not in ("send_early", "receive_unknown")]


@pytest.mark.parametrize("mistake", OF_TWO_STAGES_ON_ONE_RANK)
def test_what_comes_out_of_order_is_answered_and_changes_nothing(mistake: Any) -> None:
    right, _ = _gradients(ByHand(whole=True))
    stage = 0 if mistake == "backward_early" else 1

    gradients, answers = _gradients(ByHand(whole=True, mistake=mistake, stage=stage, microbatch=2))

    (answer,) = answers
    assert (answer.stage, answer.microbatch) == (stage, 3 if mistake.endswith("unknown") else 2)
    assert answer.error is not None
    assert f"microbatch {answer.microbatch}" in answer.error
    assert all(torch.equal(a, b) for a, b in zip(gradients, right, strict=True))


@pytest.mark.parametrize("mistake", ["send_early", "receive_unknown"])
def test_a_neighbour_on_the_same_rank_is_sent_nothing_not_even_by_mistake(mistake: Any) -> None:
    stage = 0 if mistake == "send_early" else 1

    assert _gradients(ByHand(whole=True, mistake=mistake, stage=stage))[1] == ()


class _Stubborn:
    """Does at once what it is asked for, and then knows the microbatch no more."""

    def __init__(self, operations: StageOperations, *, known: set[int]) -> None:
        self._operations, self._known = operations, known

    def backward(self, microbatch: int, *, full: bool = True) -> None:
        if microbatch not in self._known:
            raise KeyError(microbatch)
        self._known.remove(microbatch)
        with contextlib.suppress(ValueError):
            self._operations.backward(microbatch, full=full)

    def finish(self) -> None:
        with contextlib.suppress(ValueError):
            self._operations.finish()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operations, name)


class _StubbornPipeline:
    """The pipeline that has a `_Stubborn` stage."""

    def __init__(self, pipeline: Any, *, stage: int, kind: type[_Stubborn] = _Stubborn) -> None:
        self._pipeline, self._stage, self._kind = pipeline, stage, kind

    def open_stages(self, batch: Any) -> dict[int, Any]:
        opened = dict(self._pipeline.open_stages(batch))
        opened[self._stage] = self._kind(opened[self._stage], known=set(range(batch.num_microbatches)))
        return opened


def test_what_was_done_too_early_may_be_refused_when_it_is_due() -> None:
    case = _case(ByHand(whole=True, mistake="backward_first", stage=0, microbatch=1))
    plan = _plan(case)
    pipeline: Any = _StubbornPipeline(ReferenceAdapter().build(plan), stage=0)
    hand = case.trains[0].by_hand
    assert hand is not None

    (answer,) = by_hand.drive(pipeline, plan, data.make_batch(case, 0), hand)

    assert answer.error is None
    assert answer.call == "the backward before the forward"


def test_a_step_that_cannot_go_on_after_what_it_did_too_early_says_why() -> None:
    case = _case(ByHand(whole=True, mistake="backward_first", stage=1, microbatch=1))
    plan = _plan(case)
    pipeline: Any = _StubbornPipeline(ReferenceAdapter().build(plan), stage=1)
    hand = case.trains[0].by_hand
    assert hand is not None

    with pytest.raises(
        by_hand.DoneTooEarlyError, match=r"stage 1 .*microbatch 1\) and did it.*Now 0B1 fails"
    ):
        by_hand.drive(pipeline, plan, data.make_batch(case, 0), hand)


class _Refusing(_Stubborn):
    """Has forgotten what it did too early when the step is to end."""

    def finish(self) -> None:
        self._operations.finish()


def test_a_step_that_cannot_end_after_what_it_did_too_early_says_why() -> None:
    case = _case(ByHand(whole=True, mistake="backward_first", stage=0, microbatch=1))
    plan = _plan(case)
    pipeline: Any = _StubbornPipeline(ReferenceAdapter().build(plan), stage=0, kind=_Refusing)
    hand = case.trains[0].by_hand
    assert hand is not None

    with pytest.raises(
        by_hand.DoneTooEarlyError, match=r"and did it.*Now the end of the step fails: OrderError"
    ):
        by_hand.drive(pipeline, plan, data.make_batch(case, 0), hand)


@pytest.mark.parametrize("hand", [*HANDS, WHOLE], ids=repr)
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
