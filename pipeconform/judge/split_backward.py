"""Weight parts, deferred functions, and operations that are called out of order."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipeconform.case.case import Train
from pipeconform.errors import HarnessError
from pipeconform.judge import training
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.judge.timeline import Executed
from pipeconform.observe.observation import Answered, Held

__all__ = [
    "held_by",
    "mistakes_are_refused",
    "still_alive",
    "wrongly_counted",
]

_WORDS = re.compile(r"chunk|micro-?\s?batch", re.IGNORECASE)


def held_by(evidence: Evidence, one: Executed, step: int) -> Iterator[Held]:
    """What one rank still held of the forwards that count."""
    shown = next(shown_step(each, step) for each in evidence.members if each.rank == one.rank)
    if shown.held is None:
        raise HarnessError(f"rank {one.rank} was asked for its memory and recorded none")
    return (held for held in shown.held if held.call in one.calls)


def still_alive(one: Executed, held: Held, step: int, *, kind: str, when: str) -> Finding:
    """A finding about tensors that are alive although their backward has run."""
    s, k = one.calls[held.call]
    what = f"{held.tensors} tensor{'s' if held.tensors > 1 else ''}"
    return Finding(
        kind=kind,
        message=f"{what} that stage {s} saved for the backward of microbatch {k} {'are' if held.tensors > 1 else 'is'} "
        f"still alive {when}, although its backward, weight part included, has run",
        step=step,
        rank=one.rank,
        stage=s,
        microbatch=k,
    )


def wrongly_counted(evidence: Evidence) -> Iterator[Finding]:
    """Deferred-weight builders, or functions that they returned, that did not run once per microbatch."""
    for expected in evidence.runs(Train):
        for s, right in expected.hook_counts.items():
            for one in evidence.owners(s):
                mine = shown_step(one, expected.step).hook_counts.get(s, {})
                for what, count in right.items():
                    evidence.compared()
                    if mine.get(what, 0) != count:
                        told = what.replace("_", " ")
                        yield Finding(
                            kind=f"{told}: {'too many' if mine.get(what, 0) > count else 'too few'}",
                            message=f"stage {s} counts {told} {mine.get(what, 0)} times; expected {count} for "
                            f"{len(evidence.sizes(expected.step))} microbatches",
                            step=expected.step,
                            rank=one.rank,
                            stage=s,
                        )


def mistakes_are_refused(evidence: Evidence) -> Iterator[Finding]:
    """An operation that is not due raises an error that says so, and changes nothing (SPL-4, ERR-12)."""
    for expected in evidence.runs(Train):
        run = evidence.case.program[expected.step]
        assert isinstance(run, Train)
        if run.by_hand is None:
            continue
        for one in evidence.owners(run.by_hand.stage):
            for answer in shown_step(one, expected.step).answers:
                evidence.compared()
                told = _unclear(answer)
                if told is not None:
                    yield Finding(
                        kind=f"{answer.call}: {told[0]}",
                        message=f"stage {answer.stage} was asked for {answer.call} "
                        f"(microbatch {answer.microbatch}) {told[1]}",
                        step=expected.step,
                        rank=one.rank,
                        stage=answer.stage,
                        microbatch=answer.microbatch,
                    )
    yield from training.gradients_are_right(evidence.uncounted)


def _unclear(answer: Answered) -> tuple[str, str] | None:
    """What is wrong with an answer, as a short and a long text; None if an error names the microbatch in words."""
    if answer.error is None:
        return "accepted", "and did it; expected: an error"
    names = re.search(rf"(?<![\w.-]){answer.microbatch}(?![\w.])", answer.error)
    if names and _WORDS.search(answer.error):
        return None
    return "unclear error", f"and said only {answer.error[:200]!r}; expected: words that name the microbatch"
