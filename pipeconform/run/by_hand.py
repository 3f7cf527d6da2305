"""A training step that the harness drives by the stages' own operations, on one rank.

The order is a table like any other: all forwards, stage by stage, then all backwards, completed with sends
and receives that cannot wait in a circle. A mistake is made where it is due, and the step goes on as if it
had not been; the answer is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeconform.adapter import Batch, Plan, StageOperations
from pipeconform.case.case import ByHand
from pipeconform.observe.observation import Answered
from pipeconform.run.answers import CheckedPipeline
from pipeconform.schedule import Action, Kind, Table, lower

__all__ = ["drive", "order"]

Placed = Sequence[int]
"""Stage to pipeline rank."""

_TOLD = {
    "weight_first": "the weight part before the input part",
    "weight_twice": "the weight part a second time",
    "weight_unknown": "the weight part of a microbatch that the step does not have",
}


def order(hand: ByHand, *, placement: Placed, num_ranks: int, num_microbatches: int) -> Table:
    """The table of a step by hand, sends and receives included; receives stand right before their use."""
    ranks = []
    for rank in range(num_ranks):
        owned = [s for s, owner in enumerate(placement) if owner == rank]
        actions = [Action(s, Kind.F, k) for s in owned for k in range(num_microbatches)]
        weights: list[Action] = []
        for s in reversed(owned):
            for k in range(num_microbatches):
                if hand.mixed and k % 2:
                    actions.append(Action(s, Kind.B, k))
                    continue
                actions.append(Action(s, Kind.I, k))
                (weights if hand.late else actions).append(Action(s, Kind.W, k))
        ranks.append(actions + weights)
    table = Table.build(ranks, placement=tuple(placement), num_microbatches=num_microbatches)
    return lower(table, receives="late")


def drive(pipeline: CheckedPipeline, plan: Plan, batch: Batch, hand: ByHand) -> tuple[Answered, ...]:
    """Drive one step on this rank; the answers to the mistake, if it is made here.

    Raises:
        Exception: whatever the implementation raised at a call that was due.
    """
    stages = pipeline.open_stages(batch)
    rank = plan.ranks.pipeline_rank
    if rank is None:
        return ()
    table = order(
        hand,
        placement=[min(owners) for owners in plan.placement],
        num_ranks=len(plan.ranks.pipeline_ranks),
        num_microbatches=batch.num_microbatches,
    )
    answers: list[Answered] = []
    for action in table[rank]:
        for part in action.leaves:
            answers += _mistake(stages, hand, part, before=True, unknown=batch.num_microbatches)
            _call(stages[part.stage], part)
            answers += _mistake(stages, hand, part, before=False, unknown=batch.num_microbatches)
    for operations in stages.values():
        operations.finish()
    return tuple(answers)


def _call(stage: StageOperations, action: Action) -> None:
    k = action.microbatch
    assert k is not None
    match action.kind:
        case Kind.F:
            stage.forward(k)
        case Kind.B:
            stage.backward(k)
        case Kind.I:
            stage.backward(k, full=False)
        case Kind.W:
            stage.backward_weight(k)
        case Kind.RECV_F:
            stage.receive_forward(k)
        case Kind.SEND_F:
            stage.send_forward(k)
        case Kind.RECV_B:
            stage.receive_backward(k)
        case Kind.SEND_B:
            stage.send_backward(k)
        case _:
            raise AssertionError(f"a step by hand has no {action}")


def _mistake(
    stages: Mapping[int, StageOperations], hand: ByHand, action: Action, *, before: bool, unknown: int
) -> Iterator[Answered]:
    """Make the mistake if it is due around this action."""
    if (action.stage, action.microbatch) != (hand.stage, hand.microbatch):
        return
    due = {"weight_first": (Kind.I, True), "weight_twice": (Kind.W, False), "weight_unknown": (Kind.I, True)}
    if due.get(hand.mistake) != (action.kind, before):
        return
    k = unknown if hand.mistake == "weight_unknown" else hand.microbatch
    error: str | None = None
    try:
        stages[hand.stage].backward_weight(k)
    except Exception as found:  # whatever it is, it is the answer
        error = _text(found)
    yield Answered(stage=hand.stage, microbatch=k, call=_TOLD[hand.mistake], error=error)


def _text(error: BaseException) -> str:
    """An error's message, and those of what caused it; the type is not part of it."""
    cause = error.__cause__
    return f"{error}\n{_text(cause)}" if cause is not None else str(error)
