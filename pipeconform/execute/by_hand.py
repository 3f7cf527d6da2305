"""A training step that the harness drives with the stages' own operations, on one rank.

The order is a table like any other: all forwards, stage by stage, then all backwards, completed with sends
and receives that cannot wait in a circle. A mistake is made where it is due, the answer is recorded, and the step
goes on as if there had been no mistake. An operation may be refused when it is due only if it came too early
and was carried out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from pipeconform.adapter import Batch, Plan, StageOperations
from pipeconform.case.by_hand import has_neighbour
from pipeconform.case.case import ByHand
from pipeconform.execute.answers import CheckedPipeline
from pipeconform.observe.observation import Answered
from pipeconform.schedule import Action, Kind, Table, lower

__all__ = ["CALLS", "DUE", "TOLD", "DoneTooEarlyError", "drive", "order"]

Placed = Sequence[int]
"""The pipeline rank of each stage."""

TOLD = {
    "weight_first": "the weight part before the input part",
    "weight_twice": "the weight part a second time",
    "weight_unknown": "the weight part of a microbatch that the step does not have",
    "backward_first": "the backward before the forward",
    "forward_twice": "the forward a second time",
    "backward_twice": "the backward a second time",
    "forward_unknown": "the forward of a microbatch that the step does not have",
    "backward_unknown": "the backward of a microbatch that the step does not have",
    "receive_unknown": "the input of a microbatch that the step does not have",
    "forward_early": "the forward before its input is there",
    "backward_early": "the backward before the gradient of its output is there",
    "send_early": "the sending of its output before the forward",
    "finish_early": "the end of the step before the backward",
}
DUE: dict[str, tuple[Kind, bool]] = {
    "weight_first": (Kind.I, True),
    "weight_twice": (Kind.W, False),
    "weight_unknown": (Kind.I, True),
    "backward_first": (Kind.F, True),
    "forward_twice": (Kind.F, False),
    "backward_twice": (Kind.B, False),
    "forward_unknown": (Kind.F, True),
    "backward_unknown": (Kind.B, True),
    "receive_unknown": (Kind.F, True),
    "backward_early": (Kind.F, False),
    "send_early": (Kind.F, True),
    "finish_early": (Kind.B, True),
}
"""The action of its stage and microbatch around which a mistake is made, and whether before it; a forward that
comes too early is made before everything else, when no input can be there yet."""
CALLS: dict[str, Kind] = {
    "backward_first": Kind.B,
    "forward_twice": Kind.F,
    "backward_twice": Kind.B,
    "forward_unknown": Kind.F,
    "backward_unknown": Kind.B,
    "receive_unknown": Kind.RECV_F,
    "forward_early": Kind.F,
    "backward_early": Kind.B,
    "send_early": Kind.SEND_F,
}
"""What is called by mistake, where it is not a weight part or the end of the step."""
_ENDS = "finish_early"


class DoneTooEarlyError(Exception):
    """An operation that was not due was carried out, and now the step cannot go on."""

    def __init__(self, answer: Answered, due: Action | str, error: Exception) -> None:
        super().__init__(
            f"stage {answer.stage} was asked for {answer.call} (microbatch {answer.microbatch}) and did it; "
            f"expected: an error. Now {due} fails: {type(error).__name__}: {error}"
        )


def order(hand: ByHand, *, placement: Placed, num_ranks: int, num_microbatches: int) -> Table:
    """The table of a step by hand, with sends and receives; each receive comes right before its use."""
    ranks = []
    for rank in range(num_ranks):
        owned = [s for s, owner in enumerate(placement) if owner == rank]
        actions = [Action(s, Kind.F, k) for s in owned for k in range(num_microbatches)]
        weights: list[Action] = []
        for s in reversed(owned):
            for k in range(num_microbatches):
                if hand.whole or (hand.mixed and k % 2):
                    actions.append(Action(s, Kind.B, k))
                    continue
                actions.append(Action(s, Kind.I, k))
                (weights if hand.late else actions).append(Action(s, Kind.W, k))
        ranks.append(actions + weights)
    table = Table.build(ranks, placement=tuple(placement), num_microbatches=num_microbatches)
    return lower(table, receives="late")


def drive(pipeline: CheckedPipeline, plan: Plan, batch: Batch, hand: ByHand) -> tuple[Answered, ...]:
    """Drive one step on this rank; return the answers to the mistake, if it is made here.

    Raises:
        Exception: whatever the implementation raised at a call that was due.
    """
    stages = pipeline.open_stages(batch)
    rank = plan.ranks.pipeline_rank
    if rank is None:
        return ()
    placed = [min(owners) for owners in plan.placement]
    table = order(
        hand,
        placement=placed,
        num_ranks=len(plan.ranks.pipeline_ranks),
        num_microbatches=batch.num_microbatches,
    )
    m = batch.num_microbatches
    if hand.stage not in stages or not has_neighbour(hand.mistake, stage=hand.stage, placed=placed):
        hand = structs.replace(hand, mistake="")
    answers = list(_mistake(stages, hand, None, before=True, unknown=m))
    for action in table[rank]:
        for part in action.leaves:
            answers += _mistake(stages, hand, part, before=True, unknown=m)
            try:
                _call(stages[part.stage], part)
            except Exception as error:
                if not answers or answers[0].error is not None:
                    raise
                if not _was_done(answers[0], hand, part):
                    raise DoneTooEarlyError(answers[0], part, error) from error
            answers += _mistake(stages, hand, part, before=False, unknown=m)
    for operations in stages.values():
        try:
            operations.finish()
        except Exception as error:
            if not answers or answers[0].error is not None:
                raise
            raise DoneTooEarlyError(answers[0], "the end of the step", error) from error
    return tuple(answers)


def _was_done(answer: Answered, hand: ByHand, part: Action) -> bool:
    """Whether an action may have been carried out before it was due, because the mistake was not refused."""
    early = hand.mistake in ("backward_first", "forward_early", "backward_early", "send_early")
    return (
        early
        and answer.error is None
        and (part.stage, part.microbatch) == (answer.stage, answer.microbatch)
        and part.kind is CALLS[hand.mistake]
    )


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
    stages: Mapping[int, StageOperations],
    hand: ByHand,
    action: Action | None,
    *,
    before: bool,
    unknown: int,
) -> Iterator[Answered]:
    """Make the mistake if it is due around this action; None is the beginning of the step."""
    if not _is_due(hand, action, before=before):
        return
    k = unknown if hand.mistake.endswith("unknown") else hand.microbatch
    error: str | None = None
    try:
        if hand.mistake.startswith("weight"):
            stages[hand.stage].backward_weight(k)
        elif hand.mistake == _ENDS:
            stages[hand.stage].finish()
        else:
            _call(stages[hand.stage], Action(hand.stage, CALLS[hand.mistake], k))
    except Exception as found:  # any exception is an answer
        error = _text(found)
    yield Answered(stage=hand.stage, microbatch=k, call=TOLD[hand.mistake], error=error)


def _is_due(hand: ByHand, action: Action | None, *, before: bool) -> bool:
    if action is None:
        return hand.mistake == "forward_early"
    if (action.stage, action.microbatch) != (hand.stage, hand.microbatch):
        return False
    return DUE.get(hand.mistake) == (action.kind, before)


def _text(error: BaseException) -> str:
    """An error's message, and those of its causes, without types."""
    cause = error.__cause__
    return f"{error}\n{_text(cause)}" if cause is not None else str(error)
