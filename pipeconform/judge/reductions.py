"""How often, and when, the gradients of a stage are summed over its replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pipeconform.errors import HarnessError
from pipeconform.judge.evidence import Evidence, Finding
from pipeconform.observe.observation import Event, Named, Reduction, StepExpected, StepShown

__all__ = [
    "reduced_once",
]


def reduced_once(
    evidence: Evidence, expected: StepExpected, step: StepShown, s: int, *, rank: int, stages: Sequence[int]
) -> Iterator[Finding]:
    """What is wrong with the reductions of one stage's gradients in one step; `stages` are those of the rank.

    An engine may use groups of its own, which all stages of a rank can share: then they are judged together.
    """
    if step.reductions is None or step.events is None:
        raise HarnessError(f"rank {rank} was asked for its reductions and recorded none")
    alike = [one for one in step.reductions if one.alike]
    if alike and not any(one.stage in stages and not one.alike for one in step.reductions):
        if s == min(stages):
            yield from _judged(evidence, expected, step, alike, stages, rank=rank)
        return
    own = [one for one in step.reductions if one.stage == s and not one.alike]
    yield from _judged(evidence, expected, step, own, [s], rank=rank)


def _judged(
    evidence: Evidence,
    expected: StepExpected,
    step: StepShown,
    found: Sequence[Reduction],
    stages: Sequence[int],
    *,
    rank: int,
) -> Iterator[Finding]:
    sizes = [_sizes(evidence, expected.gradients.get(s, {})) for s in stages]
    least, most = sum(one for one, _ in sizes), sum(one for _, one in sizes)
    found = _without_numbers(found, least)
    given = sum(one.elements for one in found)
    where: dict[str, Any] = {"step": expected.step, "rank": rank, "stage": stages[0]}
    name = f"stage {stages[0]}" if len(stages) == 1 else f"stages {', '.join(map(str, stages))}"
    have = "has" if len(stages) == 1 else "have"
    m = len(evidence.sizes(expected.step))
    if given < least:
        kind = "never synchronised" if not given else "partly synchronised"
        text = (
            f"{name} {have} {least} gradient values; rank {rank} reduces {given or 'none'} of them in step "
            f"{expected.step}"
        )
        elsewhere = sum(one.elements for one in step.reductions or () if one.stage < 0)
        if elsewhere:
            text += f", and {elsewhere} values on other groups than the stage's"
        yield Finding(kind=kind, message=text, **where)
    elif given > most:
        text = (
            f"{name} {have} {most} gradient values; rank {rank} reduces {given} in step {expected.step}, "
            f"{given / most:.3g} times as many, in {len(found)} operations (m = {m})"
        )
        yield Finding(kind="synchronised more than once", message=text, **where)
    events = step.events or ()
    ends = [end for s in stages if (end := _last_backward(events, s)) is not None]
    early = next((one for one in found if ends and one.events <= min(ends)), None)
    if early is not None:
        text = (
            f"rank {rank} reduces {early.elements} values of {name} ({early.name.strip('_')}) before the stage's "
            f"last backward has begun: {_passed(events, stages[0], early)} of {m} had"
        )
        yield Finding(kind="synchronised too early", message=text, **where)


def _without_numbers(found: Sequence[Reduction], least: int) -> Sequence[Reduction]:
    """Leave out single numbers, such as losses and norms, if the rest is enough for all gradients."""
    rest = [one for one in found if one.elements > 1]
    return rest if sum(one.elements for one in rest) >= least else found


def _sizes(evidence: Evidence, gradients: Named) -> tuple[int, int]:
    """The number of gradient values, without and with the padding that sharding adds to make shards equal."""
    replicas = evidence.case.world.replicas
    assert replicas is not None
    num = len(evidence.case.world.pipelines)
    least = most = 0
    for array in gradients.values():
        if array is None:
            continue
        least += array.size
        rows = array.shape[0] if array.shape else 1
        padded = -(-rows // num) * num if replicas.wrapper == "fully_shard" else rows
        most += array.size // max(rows, 1) * padded
    return least, most


def _last_backward(events: Sequence[Event], s: int) -> int | None:
    """Where the weight gradients of the stage's last backward, or weight part, begin; None if there are none."""
    weights = [(index, event.call) for index, event in enumerate(events) if _is_weight(event, s)]
    return next((index for index, call in weights if call == weights[-1][1]), None)


def _passed(events: Sequence[Event], s: int, one: Reduction) -> int:
    return len({event.call for event in events[: one.events] if _is_weight(event, s)})


def _is_weight(event: Event, s: int) -> bool:
    return event.kind == "W" and event.stage == s
