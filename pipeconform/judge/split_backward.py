"""Judgements of chapter SPL: input and weight gradients apart."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipeconform.case.case import Train
from pipeconform.case.draw.traits import traits
from pipeconform.case.focus import Focus
from pipeconform.errors import HarnessError
from pipeconform.judge import training
from pipeconform.judge.evidence import Evidence, Finding, shown_step
from pipeconform.judge.schedules import counted_once, possible_order
from pipeconform.judge.timeline import Executed, executed
from pipeconform.observe.observation import Answered, Held

__all__ = [
    "deferred_functions_run_once",
    "mistakes_are_refused",
    "nothing_kept_after_weights",
    "weights_run_once",
]

_WORDS = re.compile(r"chunk|micro-?\s?batch", re.IGNORECASE)


def weights_run_once(evidence: Evidence) -> Iterator[Finding]:
    """Each weight part runs once, after its input part, gradients are right, nothing is left at the end (SPL-2)."""
    if Focus.BY_HAND in traits(evidence.case):
        yield from training.gradients_are_right(evidence)
    for expected in evidence.runs(Train):
        ranks = executed(evidence, expected.step)
        for finding in counted_once(evidence, expected.step, ranks):
            if "W" in finding.kind.split():
                yield finding
        for one in ranks:
            evidence.compared(len(one.calls))
            for finding in possible_order(one, step=expected.step):
                if finding.kind == "W before I":
                    yield finding
            for held in _held(evidence, one, expected.step):
                if held.before < 0:
                    yield _kept(one, held, expected.step, kind="left over", when="when the step has ended")


def nothing_kept_after_weights(evidence: Evidence) -> Iterator[Finding]:
    """What a forward saved is gone when the weight part has run and the rank goes forward again (SPL-5)."""
    for expected in evidence.runs(Train):
        for one in executed(evidence, expected.step):
            seen: set[int] = set()
            evidence.compared(len(one.calls))
            for held in _held(evidence, one, expected.step):
                if held.call in seen:
                    continue
                seen.add(held.call)
                when = "when the step has ended"
                if held.before >= 0:
                    later = one.calls.get(held.before)
                    when = f"when {later[0]}F{later[1]} begins" if later else "when another forward begins"
                yield _kept(one, held, expected.step, kind="kept after the weight part", when=when)


def _held(evidence: Evidence, one: Executed, step: int) -> Iterator[Held]:
    """What one rank kept of the forwards that count."""
    shown = next(shown_step(each, step) for each in evidence.members if each.rank == one.rank)
    if shown.held is None:
        raise HarnessError(f"rank {one.rank} was asked for its memory and recorded none")
    return (held for held in shown.held if held.call in one.calls)


def _kept(one: Executed, held: Held, step: int, *, kind: str, when: str) -> Finding:
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


def deferred_functions_run_once(evidence: Evidence) -> Iterator[Finding]:
    """A deferred-weight builder, and each function that it returned, ran once per microbatch (SPL-3).

    What a builder finds is counted too: entries that no microbatch left are those of a dry run.
    """
    miscounted = list(_miscounted(evidence))
    yield from miscounted or training.gradients_are_right(evidence.uncounted)


def _miscounted(evidence: Evidence) -> Iterator[Finding]:
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
    """What is wrong with an answer, short and long: an error names the microbatch, in words."""
    if answer.error is None:
        return "accepted", "and did it; expected: an error"
    names = re.search(rf"(?<![\w.-]){answer.microbatch}(?![\w.])", answer.error)
    if names and _WORDS.search(answer.error):
        return None
    return "unclear error", f"and said only {answer.error[:200]!r}; expected: words that name the microbatch"
