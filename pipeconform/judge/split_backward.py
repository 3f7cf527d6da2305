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
from pipeconform.plural import plural

__all__ = [
    "held_by",
    "mistakes_are_refused",
    "refusals_name_the_microbatch",
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
                            message=f"stage {s} counts {told} {plural(mine.get(what, 0), 'time')}; expected {count} "
                            f"for {plural(len(evidence.sizes(expected.step)), 'microbatch')}",
                            step=expected.step,
                            rank=one.rank,
                            stage=s,
                        )


def mistakes_are_refused(evidence: Evidence) -> Iterator[Finding]:
    """An operation that is not due raises an error, and changes nothing (SPL-4, ERR-12)."""
    for step, rank, answer in _answers(evidence):
        evidence.compared()
        if answer.error is None:
            yield _about(answer, step, rank, "accepted", "and did it; expected: an error")
    yield from training.gradients_are_right(evidence.uncounted)


def refusals_name_the_microbatch(evidence: Evidence) -> Iterator[Finding]:
    """The error about an operation that is not due names the microbatch in words (SPL-6, ERR-17)."""
    for step, rank, answer in _answers(evidence):
        if answer.error is None:
            continue
        evidence.compared()
        names = re.search(rf"(?<![\w.-]){answer.microbatch}(?![\w.])", answer.error)
        if not (names and _WORDS.search(answer.error)):
            told = f"and said only {answer.error[:200]!r}; expected: words that name the microbatch"
            yield _about(answer, step, rank, "unclear error", told)


def _answers(evidence: Evidence) -> Iterator[tuple[int, int, Answered]]:
    """The answers to operations that are not due, each with its step and rank."""
    for expected in evidence.runs(Train):
        run = evidence.case.program[expected.step]
        assert isinstance(run, Train)
        if run.by_hand is not None:
            for one in evidence.owners(run.by_hand.stage):
                for answer in shown_step(one, expected.step).answers:
                    yield expected.step, one.rank, answer


def _about(answer: Answered, step: int, rank: int, kind: str, told: str) -> Finding:
    return Finding(
        kind=f"{answer.call}: {kind}",
        message=f"stage {answer.stage} was asked for {answer.call} (microbatch {answer.microbatch}) {told}",
        step=step,
        rank=rank,
        stage=answer.stage,
        microbatch=answer.microbatch,
    )
