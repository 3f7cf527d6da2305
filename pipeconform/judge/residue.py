"""Judgements of chapter LIF about what is kept: during a step, after it, after more steps, after closing."""

from __future__ import annotations

from collections.abc import Iterator

from pipeconform.case.case import Train
from pipeconform.errors import HarnessError
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.judge.named import accepted
from pipeconform.observe.observation import NUM_ROUNDS, WARM_UP, Census, Kept, LivedOn, Observation
from pipeconform.schedule.families.family import Size

__all__ = ["activations_are_bounded", "closing_is_clean", "nothing_stays_behind"]


def nothing_stays_behind(evidence: Evidence) -> Iterator[Finding]:
    """After a step no graph and no output is alive but what was returned; counts are flat (LIF-3)."""
    for expected in evidence.runs():
        for one in evidence.members:
            shown = shown_step(one, expected.step)
            kept = _kept(one, expected.step)
            evidence.compared(len(shown.forwards))
            left = [held for held in shown.held or () if held.before < 0]
            stages = {call.call: call.stage for call in shown.forwards}
            if left:
                stage = stages.get(left[0].call)
                text = (
                    f"when the step has ended and its results are gone, {sum(h.tensors for h in left)} saved "
                    f"tensors of {len(left)} forwards are alive, the first of stage {stage}"
                )
                yield Finding(kind="graph kept", message=text, step=expected.step, rank=one.rank, stage=stage)
            if kept.outputs:
                text = (
                    f"when the step has ended and its results are gone, outputs of {len(kept.outputs)} forwards "
                    f"are alive, the first of stage {kept.outputs[0]}"
                )
                yield Finding(
                    kind="outputs kept",
                    message=text,
                    step=expected.step,
                    rank=one.rank,
                    stage=kept.outputs[0],
                )
    for one in evidence.shown:
        lived_on = _lived_on(one)
        evidence.compared((len(lived_on.steps) > 1) + (len(lived_on.rounds) > 1))
        yield from _grown(lived_on.steps, "step", one.rank)
        yield from _grown(lived_on.rounds, "pipeline", one.rank)


def _grown(found: tuple[Census, ...], what: str, rank: int) -> Iterator[Finding]:
    """What there is more of at the end than after the warm-up, one for every round between them or more.

    Fewer are no leak: threads that were told to end do so in their own time, and the transport's let go of their
    last message a moment late.
    """
    if len(found) < 2:
        return
    before, after = found[0], found[-1]
    for name in ("tensors", "threads", "descriptors", "groups"):
        more = getattr(after, name) - getattr(before, name)
        if more >= NUM_ROUNDS - WARM_UP:
            text = (
                f"rank {rank} has {getattr(after, name)} {name} after {NUM_ROUNDS} more {what}s, and had "
                f"{getattr(before, name)} after {WARM_UP}: every {what} leaves some behind"
            )
            yield Finding(kind=f"{name} left by every {what}", message=text, rank=rank)


def activations_are_bounded(evidence: Evidence) -> Iterator[Finding]:
    """No rank keeps the activations of more forwards than the named schedule's bound, however large m is (LIF-7)."""
    claim = evidence.capabilities.schedule(evidence.case.schedule)
    assert claim is not None
    assert claim.family is not None
    for expected in evidence.runs(Train):
        m = len(evidence.sizes(expected.step))
        size = Size(evidence.case.num_ranks, evidence.case.stages_per_rank, m)
        families = [family for family in accepted(claim.family) if family.refusal(size) is None]
        for one in evidence.members if families else ():
            assert one.pipeline_rank is not None
            bound = max(family.in_flight_weight(one.pipeline_rank, size) for family in families)
            kept = _kept(one, expected.step)
            evidence.compared()
            for kind, most, what in (
                ("activations", kept.at_once, "tensors saved by {} forwards are alive at a time"),
                ("boundary tensors", kept.inputs, "inputs of {} forwards are kept to the end of the step"),
            ):
                if most > bound:
                    text = (
                        f"on pipeline rank {one.pipeline_rank} {what.format(most)}; the bound of "
                        f"{families[0].title} is {bound} (m = {m})"
                    )
                    yield Finding(
                        kind=f"{kind} beyond the bound", message=text, step=expected.step, rank=one.rank
                    )


def closing_is_clean(evidence: Evidence) -> Iterator[Finding]:
    """A pipeline can be closed twice, and its group is of use afterwards (LIF-8)."""
    for one in evidence.shown:
        lived_on = _lived_on(one)
        evidence.compared()
        if lived_on.closing_error is not None:
            text = f"the second close() on rank {one.rank} raised {lived_on.closing_error}"
            yield Finding(kind="second close raises", message=text, rank=one.rank)
        if not lived_on.group_works:
            text = f"after close() a sum over the pipeline's group is wrong on rank {one.rank}"
            yield Finding(kind="group unusable", message=text, rank=one.rank)


def _kept(one: Observation, step: int) -> Kept:
    found = shown_step(one, step).kept
    if found is None:
        raise HarnessError(f"rank {one.rank} was asked what it keeps and recorded nothing")
    return found


def _lived_on(one: Observation) -> LivedOn:
    if one.lived_on is None:
        raise HarnessError(f"rank {one.rank} was asked to live on and recorded nothing")
    return one.lived_on
